"""Metrics of a run: latencies, rates, cost, energy, memory.

TTFT is the time from arrival to the first token, TPOT the mean time per later token of a request,
ITL a single gap between two tokens, E2E the time from arrival to the last token. A stall is a wait
of a running request between two iterations. Requests are preempted by recomputation or by swapping.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from simulators.core.contract import metric

WITH_INTERVAL = ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s")
"""Latencies with a 90 % interval in the columns `<metric>_lo` and `<metric>_hi`."""

CARBON = ("carbon_g_per_mtok", "carbon_g_per_request", "embodied_g_per_mtok")
"""Metrics that follow from energy, GPUs, `grid` and `gpu_life_years`."""

RATES_WITH_INTERVAL = ("tokens_per_s", "cost_usd_per_mtok")
"""Rates with a 90 % interval, derived from the intervals of latencies."""


_latency = partial(metric, unit="s", page="serving.md#latencies")
_rate = partial(metric, unit="1/s", page="serving.md#rates")
_low, _high, _rate_low, _rate_high, _cost_low, _cost_high = (
    partial(
        metric,
        f"{end} of its 90 % interval, by {of}; null without",
        unit=unit,
        page=f"serving.md#intervals-of-{page}",
    )
    for unit, of, page in (
        ("s", "deployments left out of the fit", "latencies"),
        ("1/s", "that of latencies", "rates-and-costs"),
        ("$", "that of tokens_per_s", "rates-and-costs"),
    )
    for end in ("lower end", "upper end")
)
_use = partial(metric, page="serving.md#use-of-the-gpus")
_pools = partial(metric, page="serving.md#separate-pools")
_count = partial(metric, page="serving.md#counts-of-requests")
_share = partial(metric, page="serving.md#evidence")
_cost = partial(metric, page="serving.md#cost-and-energy")
_saturation = partial(metric, page="serving.md#saturation")


@dataclass(frozen=True)
class ServingMetrics:
    """Metrics of a run; null where the analytic fidelity has no value."""

    ttft_mean_s: float | None = _latency("time to first token, mean", better="min")
    ttft_p50_s: float | None = _latency("time to first token, median", better="min")
    ttft_p90_s: float | None = _latency("time to first token, 90th percentile", better="min")
    ttft_p95_s: float | None = _latency("time to first token, 95th percentile")
    ttft_p99_s: float | None = _latency("time to first token, 99th percentile", better="min")
    ttft_max_s: float | None = _latency("time to first token, longest")
    ttft_mean_s_lo: float | None = _low()
    ttft_mean_s_hi: float | None = _high()
    ttft_p99_s_lo: float | None = _low()
    ttft_p99_s_hi: float | None = _high()
    prefill_mean_s: float | None = _latency("first scheduled to first token, mean")
    prefill_p99_s: float | None = _latency("first scheduled to first token, 99th percentile")
    kv_wait_mean_s: float | None = _pools(
        "prefill end to KV transfer start, mean; null without pools", unit="s"
    )
    kv_transfer_mean_s: float | None = _pools("KV transfer to the decode replica, mean", unit="s")
    kv_transfer_share: float | None = _pools("share of KV transfers in TTFT")
    tpot_mean_s: float | None = _latency("time per later token of a request, mean", better="min")
    tpot_p50_s: float | None = _latency("time per later token, median", better="min")
    tpot_p90_s: float | None = _latency("time per later token, 90th percentile", better="min")
    tpot_p95_s: float | None = _latency("time per later token, 95th percentile")
    tpot_p99_s: float | None = _latency("time per later token, 99th percentile", better="min")
    tpot_max_s: float | None = _latency("time per later token, longest")
    tpot_mean_s_lo: float | None = _low()
    tpot_mean_s_hi: float | None = _high()
    tpot_p99_s_lo: float | None = _low()
    tpot_p99_s_hi: float | None = _high()
    itl_mean_s: float | None = _latency("gap between two tokens, mean", better="min")
    itl_p50_s: float | None = _latency("gap between two tokens, median", better="min")
    itl_p90_s: float | None = _latency("gap between two tokens, 90th percentile", better="min")
    itl_p95_s: float | None = _latency("gap between two tokens, 95th percentile")
    itl_p99_s: float | None = _latency("gap between two tokens, 99th percentile", better="min")
    itl_max_s: float | None = _latency("gap between two tokens, longest")
    e2e_mean_s: float | None = _latency("arrival to last token, mean", better="min")
    e2e_p50_s: float | None = _latency("arrival to last token, median", better="min")
    e2e_p90_s: float | None = _latency("arrival to last token, 90th percentile", better="min")
    e2e_p95_s: float | None = _latency("arrival to last token, 95th percentile")
    e2e_p99_s: float | None = _latency("arrival to last token, 99th percentile", better="min")
    e2e_max_s: float | None = _latency("arrival to last token, longest")
    e2e_per_token_p50_s: float | None = _latency("E2E over output tokens of a request, median")
    e2e_per_token_p90_s: float | None = _latency(
        "E2E over output tokens of a request, 90th percentile; AgentX plots its inverse"
    )
    ttft_p50_short_s: float | None = _latency("median TTFT of prompts up to 32,768 tokens")
    ttft_p50_medium_s: float | None = _latency("median TTFT of prompts of 32,769 to 131,072 tokens")
    ttft_p50_long_s: float | None = _latency("median TTFT of prompts beyond 131,072 tokens")
    session_mean_s: float | None = _latency("first arrival to last answer of a session, mean")
    session_p99_s: float | None = _latency("the same, 99th percentile")
    queue_mean_s: float | None = _latency("arrival to first scheduled, mean", better="min")
    queue_p50_s: float | None = _latency("arrival to first scheduled, median")
    queue_p90_s: float | None = _latency("arrival to first scheduled, 90th percentile")
    queue_p95_s: float | None = _latency("arrival to first scheduled, 95th percentile")
    queue_p99_s: float | None = _latency(
        "arrival to first scheduled, 99th percentile", better="min"
    )
    queue_max_s: float | None = _latency("arrival to first scheduled, longest")
    requests_per_s: float = _rate("completed requests", better="max")
    tokens_per_s: float = _rate("output tokens", better="max")
    tokens_per_s_lo: float | None = _rate_low()
    tokens_per_s_hi: float | None = _rate_high()
    tokens_per_s_per_gpu: float = _rate("output tokens per GPU", better="max")
    prompt_tokens_per_s: float | None = _rate("prompt tokens of completed requests, cached or not")
    computed_prompt_tokens_per_s: float | None = _rate(
        "prompt tokens of completed requests, not cached"
    )
    tokens_per_s_per_user: float | None = _rate("output tokens per user: 1 / mean TPOT")
    goodput_per_s: float | None = _rate("completed requests that meet both SLOs", better="max")
    cost_usd_per_mtok: float | None = _cost(
        "GPU-hours per million output tokens", unit="$", better="min"
    )
    cost_usd_per_mtok_lo: float | None = _cost_low()
    cost_usd_per_mtok_hi: float | None = _cost_high()
    cost_usd_per_hour: float | None = _cost("cost of all GPUs per hour", unit="$")
    cost_usd_per_session: float | None = _cost(
        "cost per request times the requests of a session; null without sessions",
        unit="$",
    )
    energy_j_per_token: float | None = _cost(
        "GPU energy per output token, idle included", unit="J", better="min"
    )
    carbon_g_per_mtok: float | None = _cost(
        "CO2e of the electricity per million output tokens, by `grid` and the site's PUE",
        unit="g",
        better="min",
    )
    carbon_g_per_request: float | None = _cost(
        "CO2e of the electricity per completed request", unit="g"
    )
    embodied_g_per_mtok: float | None = _cost(
        "CO2e of making the GPUs per million output tokens, over `gpu_life_years`; null without a "
        "published figure of the GPU",
        unit="g",
    )
    kv_use_mean: float = _use("share of KV blocks in use, mean over time")
    kv_use_max: float | None = _use("share of KV blocks in use, highest of any replica")
    kv_block_fill: float | None = _use("share of slots of used KV blocks with a token, mean")
    requests_in_system_mean: float | None = _use("waiting and running requests, mean over time")
    mean_batch: float = _use("requests per iteration")
    mean_acceptance_length: float | None = _use("tokens per decode; 1 without speculation")
    utilization: float = _use("utilization of the pipeline stages")
    prefill_utilization: float | None = _pools("utilization of prefill replicas")
    decode_utilization: float | None = _pools("utilization of decode replicas")
    pool_imbalance: float | None = _pools("share by which one pool is utilized less than the other")
    mfu: float = _use("model FLOPs of computed tokens over peak FLOPs", better="max")
    prefix_hit_ratio: float | None = _use("share of prompt tokens found in the prefix cache")
    prompt_flops_saved: float | None = _use(
        "share of prompt FLOPs saved by the prefix cache; null without"
    )
    hbm_hit_ratio: float | None = _use("share of prompt tokens found in GPU memory")
    host_hit_ratio: float | None = _use("share found in host memory; null without such a tier")
    nvme_hit_ratio: float | None = _use("share found on NVMe drives; null without such a tier")
    remote_hit_ratio: float | None = _use("share found in the remote store; null without one")
    kv_fetched_tokens: int | None = _use("tokens of prefixes loaded from tiers into GPU memory")
    cached_tokens: int | None = _use("prompt tokens found in the prefix cache at first admission")
    preemptions_recompute: int = _count("preemptions by recomputation", better="min")
    preemptions_swap: int | None = _count("preemptions by swapping")
    stalled_requests: int | None = _count("requests that waited between iterations")
    stalled_mean_s: float | None = _count("wait of a request between iterations, mean", unit="s")
    completed_requests: int | None = _count("completed requests")
    measured_requests: int | None = _count("requests that latencies refer to")
    rejected_requests: int | None = _count("requests too long for the context or the KV cache")
    saturated: bool = _saturation(
        "whether the backlog grows: latencies depend on the length of the run"
    )
    backlog_growth: float | None = _saturation(
        "growth of the wait per second of arrival time; null for closed loops"
    )
    gpus: int = _use("GPUs of all replicas", better="min")
    replicas_mean: float = _use("paid replicas, mean over time: autoscaling may stop some")
    kv_blocks: int = _use("KV blocks of one replica")
    token_budget: int = _use(
        "tokens of an iteration with chunked prefill: chunk_size, or the engine's default; of "
        "prefill replicas, with separate pools"
    )
    max_num_seqs: int = _use(
        "limit of running requests of a replica: max_batch, or the engine's default; of decode "
        "replicas, with separate pools"
    )
    iterations: int | None = _use("batches, over all replicas")
    makespan_s: float | None = _use("first arrival to last token", unit="s")
    window_s: float | None = _use("time window of rates, costs, energy and use", unit="s")
    measured_share: float | None = _share("share of the time priced by measurements")
    fitted_share: float | None = _share("by fits on this GPU")
    extrapolated_share: float | None = _share("by extrapolated fits")
    datasheet_share: float | None = _share("by transfer from another GPU or by the data sheet")
