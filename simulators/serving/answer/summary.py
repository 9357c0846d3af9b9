"""Metrics of a completed run: latencies, rates, cost, energy and utilization.

Rates refer to the measurement window (`window.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.price import usd_per_mtok
from simulators.composition.price import prompt_flops_saved
from simulators.core.columns import SHARES
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.serving.answer.metrics import (
    CARBON,
    RATES_WITH_INTERVAL,
    WITH_INTERVAL,
    ServingMetrics,
)
from simulators.serving.answer.saturation import backlog_growth, is_saturated
from simulators.serving.answer.statistics import (
    STATISTICS,
    Statistics,
    gap_statistics,
    row_statistics,
    statistics_of,
)
from simulators.serving.answer.window import (
    MeasurementWindow,
    Sums,
    steady_window,
    sums_within,
    total_work,
)
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import AutoscalingPlan, Deployment, pools_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.options import STEADY, TIERS
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import IterationTable


def engine_first_token_s(times: Floats) -> Floats:
    """Return when the engine emitted the first tokens of completed requests."""
    emitted_s: Floats = times[:, at.FIRST_TOKEN] - times[:, at.COMPLETED] + times[:, at.LAST_TOKEN]
    return emitted_s


KV_TRANSFER_METRICS = ("kv_wait_mean_s", "kv_transfer_mean_s", "kv_transfer_share")
"""Metrics of KV transfers; None without separate pools."""


def kv_transfer_times(times: Floats) -> dict[str, float | None]:
    """Return the mean KV transfer times of some completed requests; None without separate pools."""
    if times.shape[1] <= at.PREFILL_END:
        return dict.fromkeys(KV_TRANSFER_METRICS)
    ttft_s = float((times[:, at.FIRST_TOKEN] - times[:, at.ARRIVAL]).sum())
    moved, count = times[times[:, at.TRANSFER_START] >= 0.0], len(times)
    waited_s = float((moved[:, at.TRANSFER_START] - moved[:, at.PREFILL_END]).sum())
    sent_s = float((engine_first_token_s(moved) - moved[:, at.TRANSFER_START]).sum())
    return dict(
        zip(KV_TRANSFER_METRICS, (waited_s / count, sent_s / count, sent_s / ttft_s), strict=True)
    )


def pool_balance(busy: Sequence[float]) -> dict[str, float | None]:
    """Return the utilization of both pools and their imbalance; None without separate pools.

    >>> pool_balance([0.25, 0.5])
    {'prefill_utilization': 0.25, 'decode_utilization': 0.5, 'pool_imbalance': 0.5}
    """
    names = ("prefill_utilization", "decode_utilization", "pool_imbalance")
    if len(busy) == 1:
        return dict.fromkeys(names)
    most = max(busy)
    apart = (most - min(busy)) / most if most else 0.0
    return dict(zip(names, (*busy, apart), strict=True))


class KVUse(NamedTuple):
    """The KV blocks that a run used, whatever the size of its KV caches."""

    most: Ints  # at the same time, by replica
    block_seconds: float  # blocks in use, integrated over the window
    span_s: float  # of the window

    def of(self, blocks: Ints) -> dict[str, float]:
        """Return the use of caches of so many blocks, by replica."""
        return {
            "kv_use_mean": self.block_seconds / (self.span_s * int(blocks.sum())),
            "kv_use_max": float((self.most / blocks).max()),
        }


@dataclass(frozen=True)
class ServingRun:
    """A completed run: the design, the requests, and the final state of requests and replicas."""

    point: ServingPoint
    deployment: Deployment
    tables: Sequence[IterationTable]  # of all replicas, or of prefill and decode replicas
    asked: Requests  # admitted
    rejected: int
    state: ReplicaState
    plan: AutoscalingPlan | None = None  # with autoscaling

    def running_share(self, window: MeasurementWindow) -> float:
        """Return the mean share of all replicas that is charged within a window."""
        if self.plan is None:
            return 1.0
        paid_s = self.plan.paid_s(
            self.state.request[:, at.REPLICA] // int(self.state.limits[at.RANKS]),
            self.state.times[:, at.ARRIVAL],
            self.state.times[:, at.LAST_TOKEN],
            (window.begin_s, window.end_s),
        )
        return paid_s / (window.span_s * self.point.replicas)

    @functools.cached_property
    def measurement(self) -> tuple[Any, MeasurementWindow, MeasurementWindow]:
        """The measured requests as a mask or slice, their window, and the window of the whole run.

        Raises:
            Infeasible: the window holds no requests.
        """
        times, warmup = self.state.times, self.point.measurement.warmup
        whole = MeasurementWindow(
            float(times[:, at.ARRIVAL].min()), float(times[:, at.COMPLETED].max())
        )
        if self.asked.graph is not None:
            if warmup:
                raise Infeasible(
                    "warmup_of_sessions",
                    "measurement.warmup has no meaning for sessions of agents: with "
                    "sessions.duration_s, each client warms up by itself",
                )
            is_measured = ~self.asked.graph.is_warmup
            if not is_measured.any():
                raise Infeasible("window_too_small", "no request completes after the warm-up")
            return is_measured, _sending_window(self.state, times[is_measured, at.COMPLETED]), whole
        if warmup:
            return slice(warmup, None), _arrival_window(times[warmup:, at.ARRIVAL]), whole
        if self.point.measurement.window == STEADY:
            return slice(None), steady_window(times, self.asked.clients) or whole, whole
        return slice(None), whole, whole

    @functools.cached_property
    def work_by_pool(self) -> Sequence[Sums]:
        """The work of each pool within the window."""
        _, window, whole = self.measurement
        return [sums_within(self.state, window, whole, n) for n in range(len(self.tables))]

    @property
    def kv_use(self) -> KVUse:
        """The use of the KV caches of all replicas."""
        _, window, _ = self.measurement
        block_seconds = total_work(self.work_by_pool).block_seconds
        return KVUse(self.state.pool[:, at.MAX_USED_BLOCKS], block_seconds, window.span_s)

    def metrics(self) -> ServingMetrics:
        """Return latencies, rates, costs and utilization.

        Latencies are those of the requests after the first `warmup`. Rates, costs, energy and use
        refer to a window: with `warmup`, from the first to the last arrival of these requests;
        else the steady part of the run, if `window` is `steady` and the run has such a part; else
        the whole run. Counts refer to the whole run. With sessions of agents, latencies leave out
        requests of the warm-up, and the window is the time of sending.

        Raises:
            Infeasible: the window holds no requests.
        """
        times, output_tokens, point = self.state.times, self.asked.output_tokens, self.point
        arrival, end = times[:, at.ARRIVAL], times[:, at.COMPLETED]
        is_measured, window, whole = self.measurement
        completed = RequestLatencies(times, output_tokens)
        measured = completed.take(is_measured)
        request = self.state.request
        computed = request[:, at.PROMPT] + request[:, at.OUTPUT] - request[:, at.NUM_CACHED]
        grows_s = None if self.asked.clients else backlog_growth(arrival, times[:, at.SCHEDULED])
        share, blocks = self.running_share(window), self.state.pool[:, at.TOTAL_BLOCKS]
        first, last = pools_of(point)[0], pools_of(point)[-1]
        columns: dict[str, Any] = {
            **_latencies(measured),
            **_columns("itl", gap_statistics(self.state)),
            **_sessions(self.asked, times),
            **_by_prompt_length(measured, self.asked.prompt_tokens[is_measured]),
            **_rates(self, completed, computed, window, share),
            **_use(self, completed, window, self.work_by_pool, share),
            **self.kv_use.of(blocks),
            "kv_blocks": int(blocks[-1]) * int(self.state.own[-1, at.RANKS]),  # of decode replicas
            "token_budget": first.token_budget,
            "max_num_seqs": last.max_num_seqs,
            "requests_in_system_mean": window.mean_inside(arrival, end),
            "measured_requests": measured.output_tokens.size,
            "rejected_requests": self.rejected,
            "completed_requests": output_tokens.size,
            "saturated": grows_s is not None and is_saturated(grows_s, arrival, end),
            "backlog_growth": grows_s,
            "makespan_s": whole.span_s,
            "window_s": window.span_s,
        }
        return ServingMetrics(**columns)


class RequestLatencies(NamedTuple):
    """Completed requests: their rows of `times` and their output tokens."""

    times: Floats
    output_tokens: Ints

    def take(self, which: Any) -> RequestLatencies:
        """Return the requests of a mask or slice."""
        return RequestLatencies(self.times[which], self.output_tokens[which])


def _sending_window(state: ReplicaState, completed_s: Floats) -> MeasurementWindow:
    """Return the time of sending; without a duration, the time up to the last completion."""
    begin_s, end_s, _ = state.sending
    return MeasurementWindow(float(begin_s), min(float(end_s), float(completed_s.max())))


def _arrival_window(arrival: Floats) -> MeasurementWindow:
    span_s = float(np.ptp(arrival)) if arrival.size else 0.0
    if span_s <= 0.0:
        raise Infeasible("window_too_small", f"{arrival.size} requests between the first and last")
    return MeasurementWindow(float(arrival.min()), float(arrival.max()))


def _latencies(served: RequestLatencies) -> dict[str, float | None]:
    times, output_tokens = served
    arrival, scheduled = times[:, at.ARRIVAL], times[:, at.SCHEDULED]
    first, end = times[:, at.FIRST_TOKEN], times[:, at.COMPLETED]
    spans_s = np.stack((first - arrival, end - arrival, scheduled - arrival, first - scheduled))
    ttft, e2e, queue, prefill = row_statistics(spans_s)
    tpot = statistics_of(_tpot_s(served)[output_tokens > 1])
    return {
        **_columns("ttft", ttft),
        **_columns("tpot", tpot),
        **_columns("e2e", e2e),
        **_columns("queue", queue),
        **kv_transfer_times(times),
        **dict.fromkeys(f"{name}_{end}" for name in WITH_INTERVAL for end in ("lo", "hi")),
        "prefill_mean_s": prefill.mean,
        "prefill_p99_s": prefill.p99,
        "tokens_per_s_per_user": 1.0 / tpot.mean if tpot and tpot.mean else None,
    }


def _sessions(asked: Requests, times: Floats) -> dict[str, float | None]:
    """Return the mean and the 99th percentile of session durations; None without sessions.

    Sessions of agents count if they were played from their first to their last request.
    """
    names, session = ("session_mean_s", "session_p99_s"), asked.session
    if session is not None and asked.graph is not None:
        whole = asked.graph.of_whole_session
        session, times = session[whole], times[whole]
    if session is None or not session.size:
        return dict.fromkeys(names)
    first = np.flatnonzero(np.diff(session, prepend=session[0] - 1))
    last_s = np.maximum.reduceat(times[:, at.COMPLETED], first)
    [took] = row_statistics((last_s - times[first, at.ARRIVAL])[np.newaxis])
    return dict(zip(names, (took.mean, took.p99), strict=True))


PROMPT_CLASSES = {"short": 32_768, "medium": 131_072, "long": np.inf}
"""Longest prompts of the classes in which TTFT is reported, in tokens. A choice."""


def _by_prompt_length(measured: RequestLatencies, prompt: Ints) -> dict[str, float | None]:
    """Return E2E per output token, and the median TTFT by class of prompt length."""
    times, output_tokens = measured
    e2e_s = times[:, at.COMPLETED] - times[:, at.ARRIVAL]
    found = statistics_of(e2e_s / np.maximum(output_tokens, 1))
    columns: dict[str, float | None] = {
        f"e2e_per_token_{which}_s": None if found is None else getattr(found, which)
        for which in ("p50", "p90")
    }
    ttft_s, least = times[:, at.FIRST_TOKEN] - times[:, at.ARRIVAL], 0.0
    for name, most in PROMPT_CLASSES.items():
        mine = ttft_s[(prompt > least) & (prompt <= most)]
        columns[f"ttft_p50_{name}_s"] = float(np.median(mine)) if mine.size else None
        least = most
    return columns


def _columns(name: str, of: Statistics | None) -> dict[str, float | None]:
    """Return the columns of one latency; null without values."""
    values = of or (None,) * len(STATISTICS)
    return {f"{name}_{which}_s": value for which, value in zip(STATISTICS, values, strict=True)}


def _tpot_s(served: RequestLatencies) -> Floats:
    """Return the mean time of each request's later tokens; 0 without later tokens."""
    times, output_tokens = served
    later = np.maximum(output_tokens - 1, 1)
    seconds: Floats = (times[:, at.COMPLETED] - times[:, at.FIRST_TOKEN]) / later
    return seconds


def _rates(
    run: ServingRun,
    completed: RequestLatencies,
    computed: Ints,
    window: MeasurementWindow,
    share: float,
) -> dict[str, float | None]:
    """Return the throughput, goodput, cost and MFU within a window.

    `computed` holds the computed tokens of each request: prompt and output without cached tokens.
    `share` of the replicas is charged.
    """
    point, built, usd = run.point, run.deployment, run.deployment.usd_per_gpu_hour
    gpus = built.gpus * share
    within = window.holds(completed.times[:, at.COMPLETED])
    paid, span_s = completed.take(within), window.span_s
    ttft_s = paid.times[:, at.FIRST_TOKEN] - paid.times[:, at.ARRIVAL]
    within_slo = (ttft_s <= point.slo_ttft_s) & (_tpot_s(paid) <= point.slo_tpot_s)
    per_s, tokens = 1.0 / span_s, int(paid.output_tokens.sum())
    flops = built.flops_per_token * int(computed[within].sum())
    prompts = int(run.asked.prompt_tokens[within].sum())
    fresh = int((computed - completed.output_tokens)[within].sum())
    return {
        "prompt_tokens_per_s": prompts * per_s,
        "computed_prompt_tokens_per_s": fresh * per_s,
        "cost_usd_per_session": _usd_per_session(run, usd, gpus, paid.output_tokens.size * per_s),
        "requests_per_s": paid.output_tokens.size * per_s,
        "tokens_per_s": tokens * per_s,
        **dict.fromkeys(f"{name}_{end}" for name in RATES_WITH_INTERVAL for end in ("lo", "hi")),
        "tokens_per_s_per_gpu": tokens * per_s / gpus,
        "goodput_per_s": int(np.count_nonzero(within_slo)) * per_s,
        "mfu": flops * per_s / (gpus * built.peak_flops),
        "cost_usd_per_hour": None if usd is None else usd * gpus,
        "cost_usd_per_mtok": (
            None if usd is None or not tokens else usd_per_mtok(usd, gpus, tokens * per_s)
        ),
    }


def _usd_per_session(
    run: ServingRun, usd: float | None, gpus: float, requests_per_s: float
) -> float | None:
    """Return the cost of the GPUs per session: that per request, times a session's requests."""
    session = run.asked.session
    if session is None or usd is None or not requests_per_s:
        return None
    graph = run.asked.graph
    requests = session.size / np.unique(session).size
    if graph is not None:
        requests = graph.requests_per_session
    return usd * gpus / 3600.0 / requests_per_s * requests


def _use(
    run: ServingRun,
    completed: RequestLatencies,
    window: MeasurementWindow,
    work_by_pool: Sequence[Sums],
    share: float,
) -> dict[str, Any]:
    """Return the work of the replicas: energy, cache hits, batches, utilization, preemptions."""
    state, built, tables = run.state, run.deployment, run.tables
    times, pool = state.times, state.pool
    lookups = slice(None) if run.asked.graph is None else ~run.asked.graph.is_warmup
    cached = int(state.request[lookups, at.NUM_CACHED].sum())
    counted: list[int] = pool.sum(axis=0).tolist()
    work = total_work(work_by_pool)
    stages = [
        one.gpus // one.hardware.replica.layout.width * share for one in built.pools or (built,)
    ]
    busy = [own.busy_s / (window.span_s * n) for own, n in zip(work_by_pool, stages, strict=True)]
    tokens = int(completed.take(window.holds(completed.times[:, at.COMPLETED])).output_tokens.sum())
    idle_j = [
        table.waiting_w * (n * window.span_s - own.busy_s)
        for table, n, own in zip(tables, stages, work_by_pool, strict=True)
        if table.waiting_w is not None
    ]
    joules = (work.joules + sum(idle_j)) / tokens if len(idle_j) == len(tables) and tokens else None
    return {
        "energy_j_per_token": joules,
        **dict.fromkeys(CARBON),  # `simulators.serving.answer.carbon` fills these
        "prefix_hit_ratio": float(cached / run.asked.prompt_tokens[lookups].sum()),
        **_hit_ratios(state, lookups, int(run.asked.prompt_tokens[lookups].sum())),
        "prompt_flops_saved": _flops_saved(run) if run.point.is_prefix_caching else None,
        "cached_tokens": cached,
        "kv_fetched_tokens": sum(counted[at.TIER_FETCHED : at.TIER_LOAD]) * run.point.block_size,
        "kv_block_fill": kv_block_fill(state),
        "mean_batch": work.batched / work.iterations,
        "mean_acceptance_length": _mean_acceptance_length(state),
        "utilization": work.busy_s / (window.span_s * sum(stages)),
        **pool_balance(busy),
        "preemptions_recompute": counted[at.RECOMPUTE_PREEMPTIONS],
        "preemptions_swap": counted[at.SWAP_PREEMPTIONS],
        "stalled_requests": int(np.count_nonzero(times[:, at.STALLED] > 0.0)),
        "stalled_mean_s": float(times[:, at.STALLED].sum()) / times.shape[0],
        "gpus": built.gpus,
        "replicas_mean": share * run.point.replicas,
        "iterations": counted[at.ITERATIONS],
        **dict(zip(SHARES, _shares(tables, busy), strict=True)),
    }


def _hit_ratios(
    state: ReplicaState, lookups: slice | NDArray[np.bool_], prompt_tokens: int
) -> dict[str, float | None]:
    """Return the shares of prompt tokens found in GPU memory and in each tier, by metric."""
    found: dict[str, float | None] = {f"{name}_hit_ratio": None for name in TIERS}
    elsewhere = 0
    for tier in range(int(state.limits[at.NUM_TIERS])):
        loaded = int(state.request[lookups, at.NUM_LOADED + tier].sum())
        elsewhere += loaded
        kind = TIERS[int(state.limits[at.TIER_KIND + tier])]
        found[f"{kind}_hit_ratio"] = loaded / prompt_tokens
    cached = int(state.request[lookups, at.NUM_CACHED].sum())
    return {"hbm_hit_ratio": (cached - elsewhere) / prompt_tokens, **found}


def _shares(tables: Sequence[IterationTable], busy: Sequence[float]) -> list[float]:
    """Return the shares of the time by evidence; two pools are weighted by their utilization."""
    if len(tables) == 1 or not sum(busy):
        return list(tables[0].shares.tolist())
    shares = np.average([table.shares for table in tables], axis=0, weights=busy)
    return list(shares.tolist())


def _flops_saved(run: ServingRun) -> float:
    prompt, cached = run.state.request[:, [at.PROMPT, at.NUM_CACHED]].T.astype(np.float64)
    return prompt_flops_saved(run.deployment.hardware.replica, prompt, cached)


def _mean_acceptance_length(state: ReplicaState) -> float | None:
    """Return the mean acceptance length: decoded tokens per request and iteration, or None."""
    steps = int(state.gaps.sum())
    later = state.request[:, at.NUM_COMPUTED] - state.request[:, at.GIVEN_PROMPT] - 1
    return int(later[later > 0].sum()) / steps if steps else None


def kv_block_fill(state: ReplicaState) -> float | None:
    """Return the mean share of token slots of allocated blocks that hold a token.

    A prompt token fills its slot when it is scheduled, an output token when the next one is
    emitted, and the last one never. None if requests were preempted or shared blocks.
    """
    block_seconds = float(state.gauge[:, at.BLOCK_SECONDS].sum())
    gave_up = state.pool[:, [at.RECOMPUTE_PREEMPTIONS, at.SWAP_PREEMPTIONS]].any()
    if not block_seconds or gave_up or state.request[:, at.NUM_CACHED].any():
        return None
    slots = state.request[:, at.PROMPT] + state.request[:, at.OUTPUT] - 1
    held = state.times[:, at.LAST_TOKEN] @ slots - state.gauge[:, at.FILLED_S].sum()
    return float(held) / (block_seconds * int(state.limits[at.BLOCK]))
