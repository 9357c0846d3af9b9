"""Metrics of a completed run: latencies, rates, cost, energy and utilization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulators.catalog.price import usd_per_mtok
from simulators.composition.useful_flops import prompt_flops_saved
from simulators.core.columns import SHARES
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.serving.answer.metrics import RATES_WITH_BAND, WITH_BAND, ServingMetrics
from simulators.serving.answer.percentiles import COLUMNS, Spread, gap_spread, spread, spreads
from simulators.serving.answer.saturation import backlog_growth, is_saturated
from simulators.serving.answer.window import (
    MeasurementWindow,
    Sums,
    steady_window,
    sums_within,
    together,
)
from simulators.serving.demand.autoscaling import AutoscalingPlan
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import Deployment
from simulators.serving.engine import replica as at
from simulators.serving.engine.state import ReplicaState
from simulators.serving.point import STEADY, ServingPoint
from simulators.serving.pools.use import balance, memory, moving
from simulators.serving.prices.iteration_table import IterationTable


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
        """Return the mean share of all replicas that is paid for within a window."""
        if self.plan is None:
            return 1.0
        paid_s = self.plan.paid_s(
            self.state.request[:, at.REPLICA] // int(self.state.limits[at.RANKS]),
            self.state.times[:, at.ARRIVAL],
            self.state.times[:, at.COMPLETED],
            (window.begin_s, window.end_s),
        )
        return paid_s / (window.span_s * self.point.replicas)

    def metrics(self) -> ServingMetrics:
        """Return latencies, rates, costs and utilization.

        Latencies are those of the requests after the first `warmup`. Rates, costs, energy and use
        refer to a window: with `warmup`, from the first to the last arrival of these requests;
        else the steady part of the run, if `window` is `steady` and the run has such a part; else
        the whole run. Counts refer to the whole run.

        Raises:
            Infeasible: the window holds no requests.
        """
        times, output_tokens, point = self.state.times, self.asked.output_tokens, self.point
        arrival, end = times[:, at.ARRIVAL], times[:, at.COMPLETED]
        whole = MeasurementWindow(float(arrival.min()), float(end.max()))
        everyone = RequestLatencies(times, output_tokens)
        measured, window = everyone, whole
        if point.measurement.warmup:
            measured = everyone.take(slice(point.measurement.warmup, None))
            window = _between(measured.times[:, at.ARRIVAL])
        elif point.measurement.window == STEADY:
            window = steady_window(everyone.times, self.asked.clients) or whole
        request = self.state.request
        seen = request[:, at.PROMPT] + request[:, at.OUTPUT] - request[:, at.NUM_CACHED]
        grows_s = None if self.asked.clients else backlog_growth(arrival, times[:, at.SCHEDULED])
        each = [sums_within(self.state, window, whole, n) for n in range(len(self.tables))]
        did, pool = together(each), self.state.pool
        share = self.running_share(window)
        ranks = int(self.state.limits[at.RANKS])
        columns: dict[str, Any] = {
            **_latencies(measured),
            **_columns("itl", gap_spread(self.state)),
            **_sessions(self.asked.session, times),
            **_rates(self, everyone, seen, window, share),
            **_use(self, everyone, window, each, share),
            **memory(pool, ranks, did.block_seconds, window.span_s),
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
        """Return some of them."""
        return RequestLatencies(self.times[which], self.output_tokens[which])


def _between(arrival: Floats) -> MeasurementWindow:
    """Return the window from the first to the last of some arrivals."""
    span_s = float(np.ptp(arrival)) if arrival.size else 0.0
    if span_s <= 0.0:
        raise Infeasible("window_too_small", f"{arrival.size} requests between the first and last")
    return MeasurementWindow(float(arrival.min()), float(arrival.max()))


def _latencies(served: RequestLatencies) -> dict[str, float | None]:
    """Return TTFT, TPOT, E2E and queue statistics."""
    times, output_tokens = served
    arrival, scheduled = times[:, at.ARRIVAL], times[:, at.SCHEDULED]
    first, end = times[:, at.FIRST_TOKEN], times[:, at.COMPLETED]
    ttft, e2e, queue, prefill = spreads(
        np.stack((first - arrival, end - arrival, scheduled - arrival, first - scheduled))
    )
    tpot = spread(_tpot_s(served)[output_tokens > 1])
    return {
        **_columns("ttft", ttft),
        **_columns("tpot", tpot),
        **_columns("e2e", e2e),
        **_columns("queue", queue),
        **moving(times),
        **dict.fromkeys(f"{name}_{end}" for name in WITH_BAND for end in ("lo", "hi")),
        "prefill_mean_s": prefill.mean,
        "prefill_p99_s": prefill.p99,
        "tokens_per_s_per_user": 1.0 / tpot.mean if tpot.mean else None,
    }


def _sessions(session: Ints | None, times: Floats) -> dict[str, float | None]:
    """Return the mean and the 99th percentile of session durations; None without sessions."""
    names = ("session_mean_s", "session_p99_s")
    if session is None:
        return dict.fromkeys(names)
    first = np.flatnonzero(np.diff(session, prepend=session[0] - 1))
    last_s = np.maximum.reduceat(times[:, at.COMPLETED], first)
    took = spread(last_s - times[first, at.ARRIVAL])
    return dict(zip(names, (took.mean, took.p99), strict=True))


def _columns(name: str, of: Spread) -> dict[str, float]:
    """Return the columns of one latency."""
    return {f"{name}_{which}_s": value for which, value in zip(COLUMNS, of, strict=True)}


def _tpot_s(served: RequestLatencies) -> Floats:
    """Return the mean time of each request's later tokens."""
    times, output_tokens = served
    later = np.maximum(output_tokens - 1, 1)
    seconds: Floats = (times[:, at.COMPLETED] - times[:, at.FIRST_TOKEN]) / later
    return seconds


def _rates(
    run: ServingRun, everyone: RequestLatencies, seen: Ints, window: MeasurementWindow, share: float
) -> dict[str, float | None]:
    """Return the throughput, goodput, cost and MFU within a window.

    `seen` holds the computed tokens of each request: prompt and output without cached tokens;
    `share` of the replicas is paid for.
    """
    point, built, usd = run.point, run.deployment, run.deployment.usd_per_gpu_hour
    gpus = built.gpus * share
    within = window.holds(everyone.times[:, at.COMPLETED])
    paid, span_s = everyone.take(within), window.span_s
    ttft_s = paid.times[:, at.FIRST_TOKEN] - paid.times[:, at.ARRIVAL]
    within_slo = (ttft_s <= point.slo_ttft_s) & (_tpot_s(paid) <= point.slo_tpot_s)
    per_s, tokens = 1.0 / span_s, int(paid.output_tokens.sum())
    return {
        "requests_per_s": paid.output_tokens.size * per_s,
        "tokens_per_s": tokens * per_s,
        **dict.fromkeys(f"{name}_{end}" for name in RATES_WITH_BAND for end in ("lo", "hi")),
        "tokens_per_s_per_gpu": tokens * per_s / gpus,
        "goodput_per_s": int(np.count_nonzero(within_slo)) * per_s,
        "mfu": built.flops_per_token * int(seen[within].sum()) * per_s / (gpus * built.peak_flops),
        "cost_usd_per_hour": None if usd is None else usd * gpus,
        "cost_usd_per_mtok": (
            None if usd is None or not tokens else usd_per_mtok(usd, gpus, tokens * per_s)
        ),
    }


def _use(
    run: ServingRun,
    everyone: RequestLatencies,
    window: MeasurementWindow,
    each: Sequence[Sums],
    share: float,
) -> dict[str, Any]:
    """Return the work of the replicas: energy, cache hits, batches, utilization, preemptions."""
    state, built, tables = run.state, run.deployment, run.tables
    times, pool = state.times, state.pool
    cached = int(state.request[:, at.NUM_CACHED].sum())
    counted: list[int] = pool.sum(axis=0).tolist()
    did = together(each)
    stages = [one.gpus // one.hardware.replica.cut.width * share for one in built.pools or (built,)]
    busy = [own.busy_s / (window.span_s * n) for own, n in zip(each, stages, strict=True)]
    tokens = int(everyone.take(window.holds(everyone.times[:, at.COMPLETED])).output_tokens.sum())
    idle_j = [
        table.waiting_w * (n * window.span_s - own.busy_s)
        for table, n, own in zip(tables, stages, each, strict=True)
        if table.waiting_w is not None
    ]
    joules = (did.joules + sum(idle_j)) / tokens if len(idle_j) == len(tables) and tokens else None
    return {
        "energy_j_per_token": joules,
        "prefix_hit_ratio": float(cached / run.asked.prompt_tokens.sum()),
        "prompt_flops_saved": _flops_saved(run),
        "cached_tokens": cached,
        "kv_fetched_tokens": counted[at.HOST_FETCHED_BLOCKS] * run.point.cache.block_size,
        "kv_block_fill": _filled(run, float(state.gauge[:, at.BLOCK_SECONDS].sum())),
        "mean_batch": did.batched / did.iterations,
        "mean_acceptance_length": _tokens_per_step(state),
        "utilization": did.busy_s / (window.span_s * sum(stages)),
        **balance(busy),
        "preemptions_recompute": counted[at.RECOMPUTE_PREEMPTIONS],
        "preemptions_swap": counted[at.SWAP_PREEMPTIONS],
        "stalled_requests": int(np.count_nonzero(times[:, at.STALLED] > 0.0)),
        "stalled_mean_s": float(times[:, at.STALLED].sum()) / times.shape[0],
        "gpus": built.gpus,
        "replicas_mean": share * run.point.replicas,
        "iterations": counted[at.ITERATIONS],
        **dict(zip(SHARES, _shares(tables, busy), strict=True)),
    }


def _shares(tables: Sequence[IterationTable], busy: Sequence[float]) -> list[float]:
    """Return the shares of the time by evidence; two pools are weighted by their utilization."""
    if len(tables) == 1 or not sum(busy):
        return list(tables[0].shares.tolist())
    shares = np.average([table.shares for table in tables], axis=0, weights=busy)
    return list(shares.tolist())


def _flops_saved(run: ServingRun) -> float | None:
    """Return the share of prefill FLOPs saved by the prefix cache; None without a cache."""
    if not run.point.cache.prefix_caching:
        return None
    prompt, cached = run.state.request[:, [at.PROMPT, at.NUM_CACHED]].T.astype(np.float64)
    return prompt_flops_saved(run.deployment.hardware.replica, prompt, cached)


def _tokens_per_step(state: ReplicaState) -> float | None:
    """Return the mean acceptance length: decoded tokens per request and iteration, or None."""
    steps = int(state.gaps.sum())
    later = state.request[:, at.NUM_COMPUTED] - state.request[:, at.PROMPT] - 1
    return int(later[later > 0].sum()) / steps if steps else None


def _filled(run: ServingRun, block_seconds: float) -> float | None:
    """Return the mean share of slots of allocated blocks that hold a token.

    A prompt fills its slots when first scheduled; output tokens fill slots evenly from the first
    token to the last. None if requests were preempted or shared blocks.
    """
    times, state = run.state.times, run.state
    gave_up = state.pool[:, [at.RECOMPUTE_PREEMPTIONS, at.SWAP_PREEMPTIONS]].any()
    if not block_seconds or gave_up or state.request[:, at.NUM_CACHED].any():
        return None
    scheduled, first, end = times[:, [at.SCHEDULED, at.FIRST_TOKEN, at.COMPLETED]].T
    prompt, output = state.request[:, [at.PROMPT, at.OUTPUT]].T
    held = (first - scheduled) * prompt + (end - first) * (prompt + (output + 1) / 2.0)
    return float(held.sum()) / (block_seconds * int(state.limits[at.BLOCK]))
