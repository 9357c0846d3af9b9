"""The metrics of a served load: latencies, rates, cost, energy, memory, as on a dashboard.

TTFT runs from arrival to the first token, TPOT is the mean time of a request's later tokens, ITL is
each single gap between tokens, E2E runs to the last token. A stall is a wait between two iterations
of a running request; a restart gives its KV cache up and recomputes it, a swap moves it to the host
and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulators.core.contract import Direction, metric

LOWER, UPPER = (
    f"{end} end of its 90 % interval, by deployments left out of the fit; null without"
    for end in ("lower", "upper")
)
HALF_WIDTH = "95 % half-width of the mean of this percentile over seeds; null of one"

WITH_BAND = ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s")
"""Metrics with a 90 % interval in the columns `<metric>_lo` and `<metric>_hi`."""


def seconds(doc: str, better: Direction | None = None) -> Any:
    """Declare a metric that is a time."""
    return metric(doc, unit="s", better=better)


@dataclass(frozen=True)
class ServingMetrics:
    """What an operator of the service would put on a dashboard; null where a mean cannot know."""

    ttft_mean_s: float | None = seconds("time to first token, mean", "min")
    ttft_p50_s: float | None = seconds("time to first token, median", "min")
    ttft_p90_s: float | None = seconds("time to first token, 90th percentile", "min")
    ttft_p95_s: float | None = seconds("time to first token, 95th percentile")
    ttft_p99_s: float | None = seconds("time to first token, 99th percentile", "min")
    ttft_p99_s_ci: float | None = seconds(HALF_WIDTH)
    ttft_max_s: float | None = seconds("time to first token, longest")
    ttft_mean_s_lo: float | None = seconds(LOWER)
    ttft_mean_s_hi: float | None = seconds(UPPER)
    ttft_p99_s_lo: float | None = seconds(LOWER)
    ttft_p99_s_hi: float | None = seconds(UPPER)
    prefill_mean_s: float | None = seconds("first scheduled to first token, mean")
    prefill_p99_s: float | None = seconds("first scheduled to first token, 99th percentile")
    tpot_mean_s: float | None = seconds("time per later token of a request, mean", "min")
    tpot_p50_s: float | None = seconds("time per later token, median", "min")
    tpot_p90_s: float | None = seconds("time per later token, 90th percentile", "min")
    tpot_p95_s: float | None = seconds("time per later token, 95th percentile")
    tpot_p99_s: float | None = seconds("time per later token, 99th percentile", "min")
    tpot_p99_s_ci: float | None = seconds(HALF_WIDTH)
    tpot_max_s: float | None = seconds("time per later token, longest")
    tpot_mean_s_lo: float | None = seconds(LOWER)
    tpot_mean_s_hi: float | None = seconds(UPPER)
    tpot_p99_s_lo: float | None = seconds(LOWER)
    tpot_p99_s_hi: float | None = seconds(UPPER)
    itl_mean_s: float | None = seconds("gap between two tokens, mean", "min")
    itl_p50_s: float | None = seconds("gap between two tokens, median", "min")
    itl_p90_s: float | None = seconds("gap between two tokens, 90th percentile", "min")
    itl_p95_s: float | None = seconds("gap between two tokens, 95th percentile")
    itl_p99_s: float | None = seconds("gap between two tokens, 99th percentile", "min")
    itl_max_s: float | None = seconds("gap between two tokens, longest")
    e2e_mean_s: float | None = seconds("arrival to last token, mean", "min")
    e2e_p50_s: float | None = seconds("arrival to last token, median", "min")
    e2e_p90_s: float | None = seconds("arrival to last token, 90th percentile", "min")
    e2e_p95_s: float | None = seconds("arrival to last token, 95th percentile")
    e2e_p99_s: float | None = seconds("arrival to last token, 99th percentile", "min")
    e2e_p99_s_ci: float | None = seconds(HALF_WIDTH)
    e2e_max_s: float | None = seconds("arrival to last token, longest")
    queue_mean_s: float | None = seconds("arrival to first scheduled, mean", "min")
    queue_p50_s: float | None = seconds("arrival to first scheduled, median")
    queue_p90_s: float | None = seconds("arrival to first scheduled, 90th percentile")
    queue_p95_s: float | None = seconds("arrival to first scheduled, 95th percentile")
    queue_p99_s: float | None = seconds("arrival to first scheduled, 99th percentile", "min")
    queue_max_s: float | None = seconds("arrival to first scheduled, longest")
    requests_per_s: float = metric("completed requests", unit="1/s", better="max")
    tokens_per_s: float = metric("output tokens", unit="1/s", better="max")
    tokens_per_s_per_gpu: float = metric("output tokens per GPU", unit="1/s", better="max")
    tokens_per_s_per_user: float | None = metric(
        "output tokens that a user sees each second, of the mean later token", unit="1/s"
    )
    goodput_per_s: float | None = metric(
        "completed requests that met both deadlines", unit="1/s", better="max"
    )
    cost_usd_per_mtok: float | None = metric(
        "GPU-hours per million output tokens", unit="$", better="min"
    )
    energy_j_per_token: float | None = metric(
        "energy of the GPUs per output token, idle time included", unit="J", better="min"
    )
    kv_use_mean: float = metric("KV blocks in use, mean over time")
    kv_use_max: float | None = metric("KV blocks in use, most on any replica")
    inside_mean: float | None = metric("requests that wait or run, mean over time")
    mean_batch: float = metric("requests per iteration")
    busy: float = metric("share of the time that stages work")
    mfu: float = metric("model FLOPs of all tokens over peak FLOPs of the GPUs", better="max")
    restarts: int = metric("times a request gave up its KV cache and was recomputed", better="min")
    swaps: int | None = metric("times the KV cache of a request was moved to the host")
    stalled_requests: int | None = metric("requests that waited between iterations while running")
    stalled_mean_s: float | None = seconds("wait of a request between iterations, mean")
    completed_requests: int | None = metric("requests served to their end")
    rejected_requests: int | None = metric("requests too long for the context or for KV memory")
    cancelled_requests: int | None = metric("requests whose clients gave up")
    saturated: bool = metric("the backlog grows: latencies depend on the length of the run")
    gpus: int = metric("GPUs of all replicas", better="min")
    kv_blocks: int = metric("KV blocks of one replica")
    iterations: int | None = metric("batches, over all replicas")
    makespan_s: float | None = seconds("first arrival to last token")
    calibrated: bool = metric("every figure behind the row was fitted to measurements")
    extrapolated: bool = metric("the row lies outside what was measured")
