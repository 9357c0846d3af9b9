"""Format a simulated run as the report of a load test."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulators.serving.answer.explain import batch_table
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.summary import STATISTICS, ServingRun
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState

LATENCIES = {
    "ttft": "TTFT",
    "queue": "queueing time",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "end-to-end latency",
}
PERIODS = 10
"""Number of equal time periods of the table."""


def report_of(run: ServingRun) -> str:
    """Return the report of a run with a log of all batches."""
    point, metrics = run.point, run.metrics()
    title = f"{point.model} on {metrics.gpus} {point.gpu}, {point.scheduler}"
    return "\n".join(
        [
            f"Load test of {title}",
            "",
            *_counts(metrics),
            "",
            *_latencies(metrics),
            "",
            *_course(run.state),
        ]
    )


def _counts(m: ServingMetrics) -> Iterator[str]:
    """Yield lines of request counts, throughput, cost, energy and utilization."""
    yield _line("requests completed", m.completed_requests)
    for name, count in (
        ("rejected as too long", m.rejected_requests),
        ("preemptions (recompute)", m.preemptions_recompute),
        ("preemptions (swap)", m.preemptions_swap),
        ("requests stalled while running", m.stalled_requests),
    ):
        if count:
            yield _line(f"  {name}", count)
    yield _line("duration", m.makespan_s, "s")
    yield _line("iterations", m.iterations)
    yield _line("requests per second", m.requests_per_s)
    yield _line("  goodput, within the SLO", m.goodput_per_s)
    yield _line("output tokens per second", m.tokens_per_s)
    yield _line("  per GPU", m.tokens_per_s_per_gpu)
    yield _line("  per user", m.tokens_per_s_per_user)
    yield _line("dollars per million output tokens", m.cost_usd_per_mtok)
    yield _line("joules per output token", m.energy_j_per_token)
    yield _line("mean batch size", m.mean_batch)
    yield _line("mean requests in system", m.requests_in_system_mean)
    yield _line("utilization", m.utilization)
    yield _line("KV blocks in use, mean and max", f"{m.kv_use_mean:.1%}, {m.kv_use_max or 0.0:.1%}")
    if m.cached_tokens:
        yield _line("prefix cache hit rate", f"{m.prefix_hit_ratio:.1%}")
    if m.saturated:
        yield "The queue kept growing: latencies depend on the length of the run."


def _latencies(m: ServingMetrics) -> Iterator[str]:
    """Yield a line for each latency, in milliseconds."""
    yield f"{'milliseconds':<24}" + "".join(f"{name:>9}" for name in STATISTICS)
    for name, words in LATENCIES.items():
        values = [1e3 * getattr(m, f"{name}_{column}_s") for column in STATISTICS]
        digits = 2 if max(values) < 1e3 else 0
        yield f"{words:<24}" + "".join(f"{value:>9,.{digits}f}" for value in values)


def _course(state: ReplicaState) -> Iterator[str]:
    """Yield arrivals, completions, batch size, queue and KV use of each period."""
    log, times = batch_table(state), state.times
    began = float(times[:, at.ARRIVAL].min())
    edges = np.linspace(began, max(float(log["end_s"].to_numpy().max()), began), PERIODS + 1)
    period = np.clip(
        np.searchsorted(edges, log["formed_s"].to_numpy(), "right") - 1, 0, PERIODS - 1
    )
    batches = np.maximum(np.bincount(period, minlength=PERIODS), 1)
    requests, waiting, blocks = (
        np.bincount(period, log[name].to_numpy(), PERIODS) / batches
        for name in ("requests", "waiting", "kv_blocks")
    )
    came, went = (np.histogram(times[:, column], edges)[0] for column in (at.ARRIVAL, at.COMPLETED))
    yield "from s      arrived completed  batch size  waiting  KV in use"
    for i in range(PERIODS):
        yield (
            f"{edges[i] - began:<10,.1f}{came[i]:>9,}{went[i]:>10,}{requests[i]:>12,.1f}"
            f"{waiting[i]:>9,.1f}{blocks[i] / state.pool[0, at.TOTAL_BLOCKS]:>11.1%}"
        )


def _line(name: str, value: float | str | None, unit: str = "") -> str:
    if isinstance(value, float):
        value = f"{value:,.3f}" if abs(value) < 100.0 else f"{value:,.0f}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"{name:<34}{'unknown' if value is None else value} {unit}".rstrip()
