"""Metrics of a completed run: latencies, rates, cost, energy and utilization.

Rates refer to the measurement window, the part of a run between ramp-up and drain. Benchmark
clients count from the first request to the last answer, which includes ramp-up and drain and so
underestimates throughput and overestimates cost in operation.

Saturation: with a load rho above 1 the queue grows while requests arrive: a request that arrives at
time t waits (rho - 1) t. The growth is the least-squares slope of waits over arrival times. The
slope does not depend on the number of GPUs or on the service time, and a burst that is worked off
leaves no slope. If the batch may grow without limit, requests do not wait but take ever longer; a
second slope, of times in system over the later half of a long run, detects this.

Percentiles are numpy's, linear; those of ITL come from a histogram with bins 0.3 % wide.
"""

from __future__ import annotations

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
from simulators.serving.answer.metrics import RATES_WITH_INTERVAL, WITH_INTERVAL, ServingMetrics
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import AutoscalingPlan, Deployment, pools_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState, gap_edges_s
from simulators.serving.point import STEADY, TIERS, ServingPoint
from simulators.serving.prices.iteration_table import IterationTable

QUANTILES = (0.5, 0.9, 0.95, 0.99)
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


class Statistics(NamedTuple):
    """Mean, percentiles and maximum of one quantity."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    longest: float


def statistics_of(values: Floats) -> Statistics | None:
    """Return the statistics of values over requests; None without values.

    >>> statistics_of(np.array([1.0, 2.0, 3.0]))
    Statistics(mean=2.0, p50=2.0, p90=2.8, p95=2.9, p99=2.98, longest=3.0)
    """
    return row_statistics(values[np.newaxis])[0] if values.size else None


def row_statistics(rows: Floats) -> list[Statistics]:
    """Return the statistics of each row of a matrix of shape (quantities, requests)."""
    count = rows.shape[1]
    ordered = np.sort(rows)
    places = np.array(QUANTILES) * (count - 1)
    low = places.astype(np.int64)
    left, right = ordered[:, low], ordered[:, np.minimum(low + 1, count - 1)]
    at_shares = left + (places - low) * (right - left)
    columns = np.column_stack((ordered.sum(axis=1) / count, at_shares, ordered[:, -1]))
    return [Statistics(*row) for row in columns.tolist()]


def gap_statistics(state: ReplicaState) -> Statistics | None:
    """Return the statistics of all gaps between tokens; None without gaps.

    The maximum is exact and limits the percentiles, which are known to the width of a bin.
    """
    bins = np.flatnonzero(state.gaps > 0)
    if bins.size == 0:
        return None
    counts = state.gaps[bins]
    below = np.cumsum(counts)
    total = int(below[-1])
    edges = gap_edges_s()
    ranks = np.array(QUANTILES) * total
    which = np.searchsorted(below, ranks)
    places = bins[which]
    inside = (ranks - below[which]) / counts[which] + 1.0
    shares = edges[places] + inside * (edges[places + 1] - edges[places])
    mean = float(state.gauge[:, at.GAPS_S].sum()) / total
    longest = float(state.times[:, at.LONGEST_GAP].max())
    p50, p90, p95, p99 = np.minimum(shares, longest).tolist()
    return Statistics(mean, p50, p90, p95, p99, longest)


FALLS_BEHIND = 0.05
"""Growth of the wait, in s/s, above which a run is saturated: a load 5 % above capacity."""

SLOWS_DOWN = 0.1
"""The same limit for the time in system, in the later half of a run."""

DEVIATIONS = 3.0
"""Standard errors by which a slope must exceed zero."""

LONG = 4.0
"""Length of a run, in median times in system, from which growth of these times is tested."""

FEWEST = 8
"""Fewest requests for which a slope is computed."""


def backlog_growth(arrival: Floats, scheduled: Floats) -> float:
    """Return the growth of waiting times over arrival times, in s/s.

    >>> came = np.arange(100.0)
    >>> round(backlog_growth(came, 1.25 * came), 3)
    0.25
    """
    return _slope(arrival, scheduled - arrival)[0]


def is_saturated(growth: float, arrival: Floats, end: Floats) -> bool:
    """Return whether a run is saturated: its queue grows, or its requests take ever longer."""
    if growth > FALLS_BEHIND:
        return True
    taken_s, span_s = end - arrival, float(np.ptp(arrival))
    if span_s < LONG * float(np.median(taken_s)):
        return False
    late = arrival >= arrival.min() + span_s / 2.0
    slope, error = _slope(arrival[late], taken_s[late])
    return slope > max(SLOWS_DOWN, DEVIATIONS * error)


def _slope(moments: Floats, values: Floats) -> tuple[float, float]:
    """Return the slope of values over moments by least squares, and its standard error."""
    if moments.size < FEWEST:
        return 0.0, 0.0
    x, y = moments - moments.mean(), values - values.mean()
    squares = float((x * x).sum())
    if squares <= 0.0:
        return 0.0, 0.0
    slope = float((x * y).sum()) / squares
    rest = y - slope * x
    return slope, float(np.sqrt((rest * rest).sum() / (moments.size - 2) / squares))


RAMP = 0.95
"""Quantile of the time in system that the ramp-up lasts: before then, fewer requests complete than
arrive."""

LEAST_SHARE = 0.25
"""A window must hold this share of all completed requests; else the run has no steady part."""


class MeasurementWindow(NamedTuple):
    """A time interval of a run, open at the start: rates count completions inside."""

    begin_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """Return the length of the window."""
        return self.end_s - self.begin_s

    def holds(self, times_s: Floats) -> NDArray[np.bool_]:
        """Return a mask of the times inside the window."""
        found: NDArray[np.bool_] = (times_s > self.begin_s) & (times_s <= self.end_s)
        return found

    def mean_inside(self, arrival: Floats, end: Floats) -> float:
        """Return the mean number of requests in the system within the window."""
        within_s = np.minimum(end, self.end_s) - np.maximum(arrival, self.begin_s)
        return float(np.maximum(within_s, 0.0).sum()) / self.span_s


class Sums(NamedTuple):
    """Work of all replicas over some time."""

    block_seconds: float
    busy_s: float  # of all stages
    joules: float
    iterations: float
    batched: float  # requests, summed over iterations


def sums_within(
    state: ReplicaState, window: MeasurementWindow, whole: MeasurementWindow, pool: int = 0
) -> Sums:
    """Return the work of a pool's replicas within a window of the whole run.

    The sums of a replica are recorded whenever a request completes (on a prefill replica, whenever
    a prefill ends) and at both ends of the run. Between these times sums are interpolated.
    """
    gauges = state.gauge[:, [at.BLOCK_SECONDS, at.BUSY_S, at.JOULES]]
    last = np.hstack((gauges, state.pool[:, [at.ITERATIONS, at.BATCHED_REQUESTS]]))
    times, prefill_replicas = state.times, int(state.limits[at.PREFILL_REPLICAS])
    if prefill_replicas and pool == 0:
        replica, last = state.request[:, at.PREFILL_REPLICA], last[:prefill_replicas]
        ended, column = at.PREFILL_END, at.PREFILL_SUMS
    else:
        replica = state.request[:, at.REPLICA] - prefill_replicas
        last, ended, column = last[prefill_replicas:], at.LAST_TOKEN, at.SUMS
    if window == whole:
        return Sums(*last.sum(axis=0).tolist())
    answered = times[:, ended] >= 0.0
    increase = np.zeros(len(Sums._fields))
    for own, at_end in enumerate(last):
        mine = times[answered & (replica == own)]
        ended_s, kept = mine[:, ended], mine[:, column : column + at.SUM_COLUMNS]
        begin, end = (_sums_at(moment, whole, ended_s, kept, at_end) for moment in window)
        increase += end - begin
    return Sums(*increase.tolist())


def total_work(work_by_pool: Sequence[Sums]) -> Sums:
    """Return the work of several pools.

    >>> total_work([Sums(1.0, 2.0, 3.0, 4.0, 5.0)] * 2).joules
    6.0
    """
    return Sums(*map(sum, zip(*work_by_pool, strict=True)))


def _sums_at(
    moment: float, whole: MeasurementWindow, ended_s: Floats, kept: Floats, at_end: Floats
) -> Floats:
    """Return the sums of a replica at a time, interpolated between the completions around it.

    Among simultaneous completions, the first one counts as next and the last one as previous.
    """
    begin_s, before, end_s, after = whole.begin_s, np.zeros_like(at_end), whole.end_s, at_end
    past = ended_s < moment
    if past.any():
        begin_s = ended_s[past].max()
        before = kept[np.flatnonzero(ended_s == begin_s)[-1]]
    if not past.all():
        end_s = ended_s[~past].min()
        after = kept[np.flatnonzero(ended_s == end_s)[0]]
    passed_s = end_s - begin_s
    share = (moment - begin_s) / passed_s if passed_s else 1.0
    found: Floats = before + share * (after - before)
    return found


def steady_window(times: Floats, clients: int = 0) -> MeasurementWindow | None:
    """Return the window without ramp-up and drain, or None for a run without a steady part.

    Open loop: the ramp-up starts at the first arrival and lasts as long as nearly all requests
    take; the drain starts at the last arrival. Closed loop: the window holds whole rounds of all
    clients without the first and the last, because all clients may complete together. The window
    must hold a quarter of the completed requests and last at least as long as the ramp-up.
    """
    if not len(times):
        return None
    arrival, end = times[:, at.ARRIVAL], times[:, at.COMPLETED]
    ramp_s = float(np.quantile(end - arrival, RAMP))
    window = MeasurementWindow(float(arrival.min()) + ramp_s, float(arrival.max()))
    if 0 < 2 * clients < end.size:
        rounds = np.sort(end)[clients - 1 :: clients]
        window = MeasurementWindow(float(rounds[0]), float(rounds[end.size // clients - 2]))
    held = np.count_nonzero(window.holds(end))
    return window if window.span_s >= ramp_s > 0.0 and held >= LEAST_SHARE * end.size else None


def engine_first_token_s(times: Floats) -> Floats:
    """Return when the engine emitted the first tokens of completed requests."""
    emitted_s: Floats = times[:, at.FIRST_TOKEN] - times[:, at.COMPLETED] + times[:, at.LAST_TOKEN]
    return emitted_s


MOVING = ("kv_wait_mean_s", "kv_transfer_mean_s", "kv_transfer_share")
"""Metrics of KV transfers; None without separate pools."""


def moving(times: Floats) -> dict[str, float | None]:
    """Return the mean KV transfer times of some completed requests; None without separate pools."""
    if times.shape[1] <= at.PREFILL_END:
        return dict.fromkeys(MOVING)
    ttft_s = float((times[:, at.FIRST_TOKEN] - times[:, at.ARRIVAL]).sum())
    moved, count = times[times[:, at.TRANSFER_START] >= 0.0], len(times)
    waited_s = float((moved[:, at.TRANSFER_START] - moved[:, at.PREFILL_END]).sum())
    sent_s = float((engine_first_token_s(moved) - moved[:, at.TRANSFER_START]).sum())
    return dict(zip(MOVING, (waited_s / count, sent_s / count, sent_s / ttft_s), strict=True))


def balance(busy: Sequence[float]) -> dict[str, float | None]:
    """Return the utilization of both pools and their imbalance; None without separate pools.

    >>> balance([0.25, 0.5])
    {'prefill_utilization': 0.25, 'decode_utilization': 0.5, 'pool_imbalance': 0.5}
    """
    names = ("prefill_utilization", "decode_utilization", "pool_imbalance")
    if len(busy) == 1:
        return dict.fromkeys(names)
    most = max(busy)
    apart = (most - min(busy)) / most if most else 0.0
    return dict(zip(names, (*busy, apart), strict=True))


def memory(pool: Ints, ranks: int, block_seconds: float, span_s: float) -> dict[str, float]:
    """Return the use of all KV blocks, and the blocks of a replica (a decode replica of two pools).

    `block_seconds` are the blocks in use, integrated over `span_s`.
    """
    total = pool[:, at.TOTAL_BLOCKS]
    return {
        "kv_use_mean": block_seconds / (span_s * int(total.sum())),
        "kv_use_max": float((pool[:, at.MAX_USED_BLOCKS] / total).max()),
        "kv_blocks": int(total[-1]) * ranks,
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
        whole = MeasurementWindow(float(arrival.min()), float(end.max()))
        completed = RequestLatencies(times, output_tokens)
        measured, window = completed, whole
        is_measured: Any = slice(None)
        if self.asked.graph is not None:
            if point.measurement.warmup:
                raise Infeasible(
                    "warmup_of_sessions",
                    "measurement.warmup has no meaning for sessions of agents: with "
                    "sessions.duration_s, each client warms up by itself",
                )
            is_measured = ~self.asked.graph.is_warmup
            measured = completed.take(is_measured)
            if not is_measured.any():
                raise Infeasible("window_too_small", "no request completes after the warm-up")
            window = _sending_window(self.state, measured.times[:, at.COMPLETED])
        elif point.measurement.warmup:
            is_measured = slice(point.measurement.warmup, None)
            measured = completed.take(is_measured)
            window = _arrival_window(measured.times[:, at.ARRIVAL])
        elif point.measurement.window == STEADY:
            window = steady_window(completed.times, self.asked.clients) or whole
        request = self.state.request
        computed = request[:, at.PROMPT] + request[:, at.OUTPUT] - request[:, at.NUM_CACHED]
        grows_s = None if self.asked.clients else backlog_growth(arrival, times[:, at.SCHEDULED])
        work_by_pool = [sums_within(self.state, window, whole, n) for n in range(len(self.tables))]
        work, pool = total_work(work_by_pool), self.state.pool
        share = self.running_share(window)
        ranks = int(self.state.own[-1, at.RANKS])  # of a decode replica
        first, last = pools_of(point)[0], pools_of(point)[-1]
        columns: dict[str, Any] = {
            **_latencies(measured),
            **_columns("itl", gap_statistics(self.state)),
            **_sessions(self.asked, times),
            **_by_prompt_length(measured, self.asked.prompt_tokens[is_measured]),
            **_rates(self, completed, computed, window, share),
            **_use(self, completed, window, work_by_pool, share),
            **memory(pool, ranks, work.block_seconds, window.span_s),
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
        **moving(times),
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
        "prefix_hit_ratio": float(cached / run.asked.prompt_tokens[lookups].sum()),
        **_hit_ratios(state, lookups, int(run.asked.prompt_tokens[lookups].sum())),
        "prompt_flops_saved": _flops_saved(run) if run.point.is_prefix_caching else None,
        "cached_tokens": cached,
        "kv_fetched_tokens": sum(counted[at.TIER_FETCHED : at.TIER_LOAD]) * run.point.block_size,
        "kv_block_fill": kv_block_fill(state),
        "mean_batch": work.batched / work.iterations,
        "mean_acceptance_length": _mean_acceptance_length(state),
        "utilization": work.busy_s / (window.span_s * sum(stages)),
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
