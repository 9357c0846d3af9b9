"""A run that has ended, and its metrics: from the times of requests to latencies, rates and use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulators.catalog.price import usd_per_mtok
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.core.levels import SHARES
from simulators.serving.answer.metrics import WITH_BAND, ServingMetrics
from simulators.serving.answer.percentiles import COLUMNS, Spread, gap_spread, spread, spreads
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import Deployment
from simulators.serving.engine import replica as at
from simulators.serving.engine.state import State
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import IterationTable

GROWTH = 0.1
"""A backlog that grows by more than this share of the arrivals is no steady state."""

DEVIATIONS, DOUBLED = 3.0, 2.0
"""Nor is one that grows by more than chance does, or a wait that has more than doubled."""


@dataclass(frozen=True)
class Run:
    """A run that has ended: what was asked, and what every request and replica went through."""

    point: ServingPoint
    deployment: Deployment
    table: IterationTable
    asked: Requests  # those let in
    rejected: int
    state: State

    def metrics(self) -> ServingMetrics:
        """Return what an operator of the service would put on a dashboard.

        Latencies are those of answered requests between `warmup` and `cooldown`, rates count what
        was answered from the arrival of the first of them to that of the last; all else is of the
        whole run.

        Raises:
            Infeasible: no request of the window was answered.
        """
        times, output_tokens, point = self.state.times, self.asked.output_tokens, self.point
        cancelled = int(np.count_nonzero(times[:, at.LEFT] >= 0.0))
        answered: Any = slice(None)
        end = times[:, at.COMPLETED]
        if cancelled:
            answered, end = end >= 0.0, np.maximum(end, times[:, at.LEFT])
        scheduled = np.where(times[:, at.SCHEDULED] < 0.0, end, times[:, at.SCHEDULED])
        makespan_s = float(end.max() - times[:, at.ARRIVAL].min())
        everyone = Served(times, output_tokens).take(answered)
        judged, paid, span_s = everyone, everyone, makespan_s
        if point.warmup or point.cooldown:
            last = output_tokens.size - point.cooldown
            judged = Served(times, output_tokens).take(slice(point.warmup, last))
            judged = judged.take(judged.times[:, at.COMPLETED] >= 0.0)
            paid, span_s = _between(everyone, judged.times[:, at.ARRIVAL])
        if judged.output_tokens.size == 0:
            raise Infeasible("no_request_is_answered", f"{cancelled} clients gave up")
        columns: dict[str, Any] = {
            **_latencies(judged),
            **_columns("itl", gap_spread(self.state)),
            **_rates(paid, span_s, self),
            **_use(self, answered, int(everyone.output_tokens.sum()), makespan_s),
            "rejected_requests": self.rejected,
            "cancelled_requests": cancelled,
            "completed_requests": output_tokens.size - cancelled,
            "saturated": backlog_grows(times[:, at.ARRIVAL], scheduled, end),
            "makespan_s": makespan_s,
        }
        return ServingMetrics(**columns)


class Served(NamedTuple):
    """Requests that were answered: their row of `times` and the tokens they asked for."""

    times: Floats
    output_tokens: Ints

    def take(self, which: Any) -> Served:
        """Return some of them."""
        return Served(self.times[which], self.output_tokens[which])


def _between(everyone: Served, arrival: Floats) -> tuple[Served, float]:
    """Return what was answered between the first and the last of some arrivals, and that time."""
    span_s = float(np.ptp(arrival)) if arrival.size else 0.0
    if span_s <= 0.0:
        raise Infeasible("window_too_small", f"{arrival.size} requests between the first and last")
    end = everyone.times[:, at.COMPLETED]
    return everyone.take((end > arrival.min()) & (end <= arrival.max())), span_s


def _latencies(served: Served) -> dict[str, float | None]:
    """Return how long requests waited and took."""
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
        **dict.fromkeys(("ttft_p99_s_ci", "tpot_p99_s_ci", "e2e_p99_s_ci")),
        **dict.fromkeys(f"{name}_{end}" for name in WITH_BAND for end in ("lo", "hi")),
        "prefill_mean_s": prefill.mean,
        "prefill_p99_s": prefill.p99,
        "tokens_per_s_per_user": 1.0 / tpot.mean if tpot.mean else None,
    }


def _columns(name: str, of: Spread) -> dict[str, float]:
    """Return the columns of one latency."""
    return {f"{name}_{which}_s": value for which, value in zip(COLUMNS, of, strict=True)}


def _tpot_s(served: Served) -> Floats:
    """Return the mean time of each request's later tokens."""
    times, output_tokens = served
    later = np.maximum(output_tokens - 1, 1)
    seconds: Floats = (times[:, at.COMPLETED] - times[:, at.FIRST_TOKEN]) / later
    return seconds


def _rates(paid: Served, span_s: float, run: Run) -> dict[str, float | None]:
    """Return what was answered per second, and what it costs."""
    point, gpus, usd = run.point, run.deployment.gpus, run.deployment.usd_per_gpu_hour
    ttft_s = paid.times[:, at.FIRST_TOKEN] - paid.times[:, at.ARRIVAL]
    met = (ttft_s <= point.slo_ttft_s) & (_tpot_s(paid) <= point.slo_tpot_s)
    per_s, tokens = 1.0 / span_s, int(paid.output_tokens.sum())
    return {
        "requests_per_s": paid.output_tokens.size * per_s,
        "tokens_per_s": tokens * per_s,
        "tokens_per_s_per_gpu": tokens * per_s / gpus,
        "goodput_per_s": int(np.count_nonzero(met)) * per_s,
        "cost_usd_per_mtok": (
            None if usd is None or not tokens else usd_per_mtok(usd, float(gpus), tokens * per_s)
        ),
    }


def _use(run: Run, answered: Any, tokens: int, makespan_s: float) -> dict[str, Any]:
    """Return what replicas did, and what of them was used."""
    state, built, table = run.state, run.deployment, run.table
    times, pool = state.times, state.pool
    queues, blocks = pool.shape[0], int(pool[0, at.TOTAL])
    counted: list[int] = pool.sum(axis=0).tolist()
    summed: list[float] = np.ascontiguousarray(state.gauge.T).sum(axis=1).tolist()
    iterations, stages = counted[at.ITERATIONS], built.gpus // built.hardware.replica.cut.width
    busy_s, per_s = summed[at.BUSY_S], 1.0 / makespan_s
    joules = None
    if table.waiting_w is not None:
        idle_j = table.waiting_w * (stages * makespan_s - busy_s)
        joules = (summed[at.JOULES] + idle_j) / tokens
    seen = int(state.request[answered, at.PROMPT].sum() + state.request[answered, at.OUTPUT].sum())
    return {
        "energy_j_per_token": joules,
        "kv_use_mean": summed[at.BLOCK_SECONDS] * per_s / (blocks * queues),
        "kv_use_max": float(pool[:, at.MOST_USED].max()) / blocks,
        "inside_mean": summed[at.INSIDE_SECONDS] * per_s,
        "mean_batch": counted[at.BATCHED] / iterations,
        "busy": busy_s * per_s / stages,
        "mfu": built.flops_per_token * seen * per_s / (built.gpus * built.peak_flops),
        "restarts": counted[at.RESTARTED],
        "swaps": counted[at.SWAPS],
        "stalled_requests": int(np.count_nonzero(times[:, at.STALLED] > 0.0)),
        "stalled_mean_s": float(times[:, at.STALLED].sum()) / times.shape[0],
        "gpus": built.gpus,
        "kv_blocks": blocks * int(state.limits[at.RANKS]),
        "iterations": iterations,
        **dict(zip(SHARES, table.shares.tolist(), strict=True)),
    }


def backlog_grows(arrival: Floats, scheduled: Floats, end: Floats) -> bool:
    """Return whether the run was on its way to an ever longer queue when arrivals stopped.

    The arrivals are cut in quarters. Either those of the last meet more requests in the system
    than those before, by a tenth of a quarter's arrivals and three deviations of a number that
    counts independent requests. Or the wait for a first batch rises from quarter to quarter, by
    more than a tenth of the time that passes and to more than twice what it was in the second.
    """
    count = arrival.size
    quarter = count // 4
    if quarter < 1:
        return False
    if (arrival[1:] < arrival[:-1]).any():  # requests of sessions
        order = np.argsort(arrival, kind="stable")
        arrival, scheduled, end = arrival[order], scheduled[order], end[order]
    gone = np.searchsorted(np.sort(end), arrival, side="right")
    inside = _quarters(np.arange(count, dtype=np.float64) - gone)
    waits = _quarters(scheduled - arrival)
    crowd = inside[3] - inside[2] > max(GROWTH * quarter, DEVIATIONS * np.sqrt(inside[2]))
    passed_s = arrival[-1] - arrival[-2 * quarter]
    rises = waits[0] <= waits[1] <= waits[2] <= waits[3] and waits[3] > DOUBLED * waits[1]
    return bool(crowd or (rises and waits[3] - waits[1] > GROWTH * passed_s))


def _quarters(values: Floats) -> list[float]:
    """Return the mean of each quarter."""
    quarter = values.size // 4
    means: list[float] = (values[: 4 * quarter].reshape(4, quarter).sum(axis=1) / quarter).tolist()
    return means
