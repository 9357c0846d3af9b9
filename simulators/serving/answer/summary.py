"""From the times of requests to the metrics of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.core.levels import SHARES, Shares
from simulators.serving.answer.metrics import WITH_BAND, ServingMetrics
from simulators.serving.answer.percentiles import Spread, gap_spread, spread, spreads
from simulators.serving.engine.replica import (
    ARRIVAL,
    BATCHED,
    COMPLETED,
    FIRST_TOKEN,
    ITERATIONS,
    LEFT,
    MOST_USED,
    OUTPUT,
    PROMPT,
    RESTARTED,
    SCHEDULED,
    STALLED,
    SWAPS,
    TOTAL,
)
from simulators.serving.engine.state import BLOCK_SECONDS, BUSY_S, INSIDE_SECONDS, JOULES, World

GROWTH = 0.1
"""A backlog that grows by more than this share of the arrivals is no steady state."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a deployment costs and how it is judged."""

    gpus: int
    gpus_per_stage: int
    usd_per_gpu_hour: float | None
    waiting_w_per_stage: float | None  # None: nobody measured the energy
    flops_per_token: float
    peak_flops_per_gpu: float
    slo_ttft_s: float
    slo_tpot_s: float
    shares: Shares  # of the time, by what it rests on


@dataclass(frozen=True)
class Window:
    """How many of the first and of the last requests are left out of latencies and rates."""

    warmup: int = 0
    cooldown: int = 0


WHOLE_RUN = Window()


class Served(NamedTuple):
    """Requests that were answered: their row of `times` and the tokens they asked for."""

    times: Floats
    output_tokens: Ints

    def take(self, which: Any) -> Served:
        """Return some of them."""
        return Served(self.times[which], self.output_tokens[which])


def metrics_of(
    world: World, output_tokens: Ints, rejected: int, bill: Bill, window: Window = WHOLE_RUN
) -> ServingMetrics:
    """Return the metrics of a run that has ended.

    Latencies are those of answered requests of the window, rates count what was answered from the
    arrival of its first request to that of its last; all else is of the whole run.

    Args:
        world: its state.
        output_tokens: per request as it was asked for; a restart moves tokens to the prompt.
        rejected: requests that were not let in.
        bill: prices, power and deadlines.
        window: the requests that latencies and rates are taken from.

    Raises:
        Infeasible: no request of the window was answered.
    """
    times = world.times
    cancelled = int(np.count_nonzero(times[:, LEFT] >= 0.0))
    answered = times[:, COMPLETED] >= 0.0 if cancelled else slice(None)
    end = np.maximum(times[:, COMPLETED], times[:, LEFT]) if cancelled else times[:, COMPLETED]
    scheduled = np.where(times[:, SCHEDULED] < 0.0, end, times[:, SCHEDULED])
    makespan_s = float(end.max() - times[:, ARRIVAL].min())
    everyone = Served(times, output_tokens).take(answered)
    judged, paid, span_s = everyone, everyone, makespan_s
    if window != WHOLE_RUN:
        last = output_tokens.size - window.cooldown
        judged = Served(times, output_tokens).take(slice(window.warmup, last))
        judged = judged.take(judged.times[:, COMPLETED] >= 0.0)
        paid, span_s = _between(everyone, judged.times[:, ARRIVAL])
    if judged.output_tokens.size == 0:
        raise Infeasible("no_request_is_answered", f"{cancelled} clients gave up")
    columns: dict[str, Any] = {
        **_latencies(judged),
        **_columns("itl", gap_spread(world)),
        **_rates(paid, span_s, bill),
        **_use(world, answered, int(everyone.output_tokens.sum()), makespan_s, bill),
        "rejected_requests": rejected,
        "cancelled_requests": cancelled,
        "completed_requests": output_tokens.size - cancelled,
        "saturated": backlog_grows(times[:, ARRIVAL], scheduled, end),
        "makespan_s": makespan_s,
    }
    return ServingMetrics(**columns)


def _between(everyone: Served, arrival: Floats) -> tuple[Served, float]:
    """Return what was answered between the first and the last of some arrivals, and that time."""
    span_s = float(np.ptp(arrival)) if arrival.size else 0.0
    if span_s <= 0.0:
        raise Infeasible("window_too_small", f"{arrival.size} requests between the first and last")
    end = everyone.times[:, COMPLETED]
    return everyone.take((end > arrival.min()) & (end <= arrival.max())), span_s


def _latencies(served: Served) -> dict[str, float | None]:
    """Return how long requests waited and took."""
    times, output_tokens = served
    arrival, scheduled = times[:, ARRIVAL], times[:, SCHEDULED]
    first, end = times[:, FIRST_TOKEN], times[:, COMPLETED]
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
    return {
        f"{name}_mean_s": of.mean,
        f"{name}_p50_s": of.p50,
        f"{name}_p90_s": of.p90,
        f"{name}_p95_s": of.p95,
        f"{name}_p99_s": of.p99,
        f"{name}_max_s": of.longest,
    }


def _tpot_s(served: Served) -> Floats:
    """Return the mean time of each request's later tokens."""
    times, output_tokens = served
    later = np.maximum(output_tokens - 1, 1)
    seconds: Floats = (times[:, COMPLETED] - times[:, FIRST_TOKEN]) / later
    return seconds


def _rates(paid: Served, span_s: float, bill: Bill) -> dict[str, float | None]:
    """Return what was answered per second, and what it costs."""
    ttft_s = paid.times[:, FIRST_TOKEN] - paid.times[:, ARRIVAL]
    met = (ttft_s <= bill.slo_ttft_s) & (_tpot_s(paid) <= bill.slo_tpot_s)
    per_s, tokens = 1.0 / span_s, int(paid.output_tokens.sum())
    usd = bill.usd_per_gpu_hour
    hours = span_s * bill.gpus / 3600.0
    return {
        "requests_per_s": paid.output_tokens.size * per_s,
        "tokens_per_s": tokens * per_s,
        "tokens_per_s_per_gpu": tokens * per_s / bill.gpus,
        "goodput_per_s": int(np.count_nonzero(met)) * per_s,
        "cost_usd_per_mtok": None if usd is None or not tokens else usd * hours / tokens * 1e6,
    }


def _use(world: World, answered: Any, tokens: int, makespan_s: float, bill: Bill) -> dict[str, Any]:
    """Return what replicas did, and what of them was used."""
    times, pool = world.times, world.pool
    replicas, blocks = pool.shape[0], int(pool[0, TOTAL])
    counted: list[int] = pool.sum(axis=0).tolist()
    summed: list[float] = np.ascontiguousarray(world.gauge.T).sum(axis=1).tolist()
    iterations, stages = counted[ITERATIONS], bill.gpus // bill.gpus_per_stage
    busy_s, per_s = summed[BUSY_S], 1.0 / makespan_s
    joules = None
    if bill.waiting_w_per_stage is not None:
        idle_j = bill.waiting_w_per_stage * (stages * makespan_s - busy_s)
        joules = (summed[JOULES] + idle_j) / tokens
    seen = int(world.request[answered, PROMPT].sum() + world.request[answered, OUTPUT].sum())
    return {
        "energy_j_per_token": joules,
        "kv_use_mean": summed[BLOCK_SECONDS] * per_s / (blocks * replicas),
        "kv_use_max": float(pool[:, MOST_USED].max()) / blocks,
        "inside_mean": summed[INSIDE_SECONDS] * per_s,
        "mean_batch": counted[BATCHED] / iterations,
        "busy": busy_s * per_s / stages,
        "mfu": bill.flops_per_token * seen * per_s / (bill.gpus * bill.peak_flops_per_gpu),
        "restarts": counted[RESTARTED],
        "swaps": counted[SWAPS],
        "stalled_requests": int(np.count_nonzero(times[:, STALLED] > 0.0)),
        "stalled_mean_s": float(times[:, STALLED].sum()) / times.shape[0],
        "gpus": bill.gpus,
        "kv_blocks": blocks,
        "iterations": iterations,
        **dict(zip(SHARES, bill.shares.tolist(), strict=True)),
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
    inside, waits = (
        _quarters(np.arange(count, dtype=np.float64) - gone),
        _quarters(scheduled - arrival),
    )
    crowd = inside[3] - inside[2] > max(GROWTH * quarter, 3.0 * np.sqrt(inside[2]))
    passed_s = arrival[-1] - arrival[-2 * quarter]
    rises = waits[0] <= waits[1] <= waits[2] <= waits[3] and waits[3] > 2.0 * waits[1]
    return bool(crowd or (rises and waits[3] - waits[1] > GROWTH * passed_s))


def _quarters(values: Floats) -> list[float]:
    """Return the mean of each quarter."""
    quarter = values.size // 4
    means: list[float] = (values[: 4 * quarter].reshape(4, quarter).sum(axis=1) / quarter).tolist()
    return means
