"""From the times of requests to what an operator of the service would put on a dashboard.

TTFT runs from arrival to the first token, TPOT is the mean time of a request's later tokens, ITL is
each single gap between tokens, E2E runs to the last token. A stall is a wait between two iterations
of a running request; a restart gives its KV cache up and recomputes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.contract import metric
from simulators.core.jit import Floats, Ints
from simulators.serving.replica import (
    ARRIVAL,
    BATCHED,
    COMPLETED,
    FIRST_TOKEN,
    ITERATIONS,
    MOST_USED,
    OUTPUT,
    PROMPT,
    RESTARTED,
    SCHEDULED,
    STALLED,
    TOTAL,
)
from simulators.serving.spread import gap_spread, spread
from simulators.serving.world import BLOCK_SECONDS, BUSY_S, JOULES, World

GROWTH = 0.1
"""A backlog that grows by more than this share of the arrivals is no steady state."""


@dataclass(frozen=True)
class ServingMetrics:
    """What an operator of the service would put on a dashboard; null where a mean cannot know."""

    ttft_mean_s: float | None = metric("time to first token, mean", unit="s", better="min")
    ttft_p50_s: float | None = metric("time to first token, median", unit="s", better="min")
    ttft_p90_s: float | None = metric(
        "time to first token, 90th percentile", unit="s", better="min"
    )
    ttft_p95_s: float | None = metric("time to first token, 95th percentile", unit="s")
    ttft_p99_s: float | None = metric(
        "time to first token, 99th percentile", unit="s", better="min"
    )
    ttft_p99_s_ci: float | None = metric(
        "95 % half-width of the mean of ttft_p99_s over seeds; null of one", unit="s"
    )
    ttft_max_s: float | None = metric("time to first token, longest", unit="s")
    tpot_mean_s: float | None = metric(
        "time per later token of a request, mean", unit="s", better="min"
    )
    tpot_p50_s: float | None = metric("time per later token, median", unit="s", better="min")
    tpot_p90_s: float | None = metric(
        "time per later token, 90th percentile", unit="s", better="min"
    )
    tpot_p95_s: float | None = metric("time per later token, 95th percentile", unit="s")
    tpot_p99_s: float | None = metric(
        "time per later token, 99th percentile", unit="s", better="min"
    )
    tpot_p99_s_ci: float | None = metric(
        "95 % half-width of the mean of tpot_p99_s over seeds; null of one", unit="s"
    )
    tpot_max_s: float | None = metric("time per later token, longest", unit="s")
    itl_mean_s: float | None = metric("gap between two tokens, mean", unit="s", better="min")
    itl_p50_s: float | None = metric("gap between two tokens, median", unit="s", better="min")
    itl_p90_s: float | None = metric(
        "gap between two tokens, 90th percentile", unit="s", better="min"
    )
    itl_p95_s: float | None = metric("gap between two tokens, 95th percentile", unit="s")
    itl_p99_s: float | None = metric(
        "gap between two tokens, 99th percentile", unit="s", better="min"
    )
    itl_max_s: float | None = metric("gap between two tokens, longest", unit="s")
    e2e_mean_s: float | None = metric("arrival to last token, mean", unit="s", better="min")
    e2e_p50_s: float | None = metric("arrival to last token, median", unit="s", better="min")
    e2e_p90_s: float | None = metric(
        "arrival to last token, 90th percentile", unit="s", better="min"
    )
    e2e_p95_s: float | None = metric("arrival to last token, 95th percentile", unit="s")
    e2e_p99_s: float | None = metric(
        "arrival to last token, 99th percentile", unit="s", better="min"
    )
    e2e_p99_s_ci: float | None = metric(
        "95 % half-width of the mean of e2e_p99_s over seeds; null of one", unit="s"
    )
    e2e_max_s: float | None = metric("arrival to last token, longest", unit="s")
    queue_mean_s: float | None = metric("arrival to first scheduled, mean", unit="s", better="min")
    queue_p50_s: float | None = metric("arrival to first scheduled, median", unit="s")
    queue_p90_s: float | None = metric("arrival to first scheduled, 90th percentile", unit="s")
    queue_p95_s: float | None = metric("arrival to first scheduled, 95th percentile", unit="s")
    queue_p99_s: float | None = metric(
        "arrival to first scheduled, 99th percentile", unit="s", better="min"
    )
    queue_max_s: float | None = metric("arrival to first scheduled, longest", unit="s")
    requests_per_s: float = metric("completed requests", unit="1/s", better="max")
    tokens_per_s: float = metric("output tokens", unit="1/s", better="max")
    tokens_per_s_per_gpu: float = metric("output tokens per GPU", unit="1/s", better="max")
    goodput_per_s: float | None = metric(
        "completed requests that met both deadlines", unit="1/s", better="max"
    )
    cost_usd_per_mtok: float | None = metric(
        "GPU-hours per million output tokens", unit="$", better="min"
    )
    energy_j_per_token: float = metric(
        "energy of the GPUs per output token, idle time included", unit="J", better="min"
    )
    kv_use_mean: float = metric("KV blocks in use, mean over time")
    kv_use_max: float | None = metric("KV blocks in use, most on any replica")
    mean_batch: float = metric("requests per iteration")
    busy: float = metric("share of the time that stages work")
    mfu: float = metric("model FLOPs of all tokens over peak FLOPs of the GPUs", better="max")
    restarts: int = metric("times a request gave up its KV cache and was recomputed", better="min")
    stalled_requests: int | None = metric("requests that waited between iterations while running")
    stalled_mean_s: float | None = metric("wait of a request between iterations, mean", unit="s")
    completed_requests: int | None = metric("requests served to their end")
    rejected_requests: int | None = metric("requests too long for the context or for KV memory")
    saturated: bool = metric("the backlog grows: latencies depend on the length of the run")
    gpus: int = metric("GPUs of all replicas", better="min")
    kv_blocks: int = metric("KV blocks of one replica")
    iterations: int | None = metric("batches, over all replicas")
    makespan_s: float | None = metric("first arrival to last token", unit="s")
    calibrated: bool = metric("every figure behind the row was fitted to measurements")
    extrapolated: bool = metric("the row lies outside what was measured")


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a deployment costs and how it is judged."""

    gpus: int
    gpus_per_stage: int
    usd_per_gpu_hour: float | None
    waiting_w_per_stage: float
    flops_per_token: float
    peak_flops_per_gpu: float
    slo_ttft_s: float
    slo_tpot_s: float
    calibrated: bool
    extrapolated: bool


def metrics_of(world: World, output_tokens: Ints, rejected: int, bill: Bill) -> ServingMetrics:
    """Return the metrics of a run that has ended.

    Args:
        world: its state.
        output_tokens: per request as it was asked for; a restart moves tokens to the prompt.
        rejected: requests that were not let in.
        bill: prices, power and deadlines.
    """
    times, pool, gauge = world.times, world.pool, world.gauge
    arrival, first, end = times[:, ARRIVAL], times[:, FIRST_TOKEN], times[:, COMPLETED]
    later = np.maximum(output_tokens - 1, 1)
    ttft, tpot, queue = first - arrival, (end - first) / later, times[:, SCHEDULED] - arrival
    ttft_s, tpot_s, itl_s = spread(ttft), spread(tpot[output_tokens > 1]), gap_spread(world)
    e2e_s, queue_s = spread(end - arrival), spread(queue)
    makespan = float(end.max() - arrival.min())
    tokens, iterations = int(output_tokens.sum()), int(pool[:, ITERATIONS].sum())
    met = (ttft <= bill.slo_ttft_s) & (tpot <= bill.slo_tpot_s)
    stages = bill.gpus // bill.gpus_per_stage
    busy_s, replicas, blocks = float(gauge[:, BUSY_S].sum()), pool.shape[0], int(pool[0, TOTAL])
    idle_j = bill.waiting_w_per_stage * (stages * makespan - busy_s)
    hours = makespan * bill.gpus / 3600.0
    usd = None if bill.usd_per_gpu_hour is None else bill.usd_per_gpu_hour * hours / tokens * 1e6
    seen = int(world.request[:, PROMPT].sum() + world.request[:, OUTPUT].sum())
    per_s = 1.0 / makespan
    return ServingMetrics(
        ttft_mean_s=ttft_s.mean,
        ttft_p50_s=ttft_s.p50,
        ttft_p90_s=ttft_s.p90,
        ttft_p95_s=ttft_s.p95,
        ttft_p99_s=ttft_s.p99,
        ttft_p99_s_ci=None,
        ttft_max_s=ttft_s.longest,
        tpot_mean_s=tpot_s.mean,
        tpot_p50_s=tpot_s.p50,
        tpot_p90_s=tpot_s.p90,
        tpot_p95_s=tpot_s.p95,
        tpot_p99_s=tpot_s.p99,
        tpot_p99_s_ci=None,
        tpot_max_s=tpot_s.longest,
        itl_mean_s=itl_s.mean,
        itl_p50_s=itl_s.p50,
        itl_p90_s=itl_s.p90,
        itl_p95_s=itl_s.p95,
        itl_p99_s=itl_s.p99,
        itl_max_s=itl_s.longest,
        e2e_mean_s=e2e_s.mean,
        e2e_p50_s=e2e_s.p50,
        e2e_p90_s=e2e_s.p90,
        e2e_p95_s=e2e_s.p95,
        e2e_p99_s=e2e_s.p99,
        e2e_p99_s_ci=None,
        e2e_max_s=e2e_s.longest,
        queue_mean_s=queue_s.mean,
        queue_p50_s=queue_s.p50,
        queue_p90_s=queue_s.p90,
        queue_p95_s=queue_s.p95,
        queue_p99_s=queue_s.p99,
        queue_max_s=queue_s.longest,
        requests_per_s=output_tokens.size * per_s,
        tokens_per_s=tokens * per_s,
        tokens_per_s_per_gpu=tokens * per_s / bill.gpus,
        goodput_per_s=int(np.count_nonzero(met)) * per_s,
        cost_usd_per_mtok=usd,
        energy_j_per_token=(float(gauge[:, JOULES].sum()) + idle_j) / tokens,
        kv_use_mean=float(gauge[:, BLOCK_SECONDS].sum()) * per_s / (blocks * replicas),
        kv_use_max=float(pool[:, MOST_USED].max()) / blocks,
        mean_batch=float(pool[:, BATCHED].sum()) / iterations,
        busy=busy_s * per_s / stages,
        mfu=bill.flops_per_token * seen * per_s / (bill.gpus * bill.peak_flops_per_gpu),
        restarts=int(pool[:, RESTARTED].sum()),
        stalled_requests=int(np.count_nonzero(times[:, STALLED] > 0.0)),
        stalled_mean_s=float(times[:, STALLED].sum()) / output_tokens.size,
        completed_requests=output_tokens.size,
        rejected_requests=rejected,
        saturated=backlog_grows(arrival, times[:, SCHEDULED], end),
        gpus=bill.gpus,
        kv_blocks=blocks,
        iterations=iterations,
        makespan_s=makespan,
        calibrated=bill.calibrated,
        extrapolated=bill.extrapolated,
    )


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
    return [float(values[i * quarter : (i + 1) * quarter].sum()) / quarter for i in range(4)]
