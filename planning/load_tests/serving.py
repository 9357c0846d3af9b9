"""Load tests of serving deployments: read benchmark results, format runs as load-test reports.

`vllm bench serve` and SGLang's `bench_serving` write one flat JSON object per run (SGLang one per
line) and print a table; aiperf and genai-perf write an object per metric, with its unit. The
inter-token latency of the last two is a mean per request, which is TPOT here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.core.folder import read_toml
from simulators.serving.answer.explain import batch_table
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.answer.summary import STATISTICS, ServingRun
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.measured_deployments import has_own_rows
from simulators.serving.point import EVENT, ServingPoint
from simulators.serving.run import logged_run
from simulators.serving.simulator import validated_partition

UNCORRECTED = (
    "Measured rows of this runtime correct the metrics of the design, but not this report."
)

LATENCIES = {
    "ttft": "TTFT",
    "queue": "queueing time",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "end-to-end latency",
}
PERIODS = 10
"""Number of equal time periods of the table."""

_NAMES = read_toml(Path(__file__).with_name("benchmarks.toml"))
_KINDS, _STATISTICS, _RATES = (
    {theirs: ours for ours, names in _NAMES[table].items() for theirs in names}
    for table in ("latencies", "statistics", "rates")
)
_LATENCY = re.compile(r"(mean|avg|median|p\d\d|max)_(\w+?)_ms")
"""Name of a latency in milliseconds: statistic and kind."""
_PRINTED = re.compile(r"([a-z0-9 ]+) \((ms|req/s|tok/s)\):\s+(\d+(?:\.\d*)?)", re.I)
_LONGEST_LINE = 500


def read_log(text: str, source: str) -> dict[str, float]:
    """Return the metrics of a benchmark's result under the names of the serving simulator.

    Latencies are in seconds, rates per second. The last of several runs in one text counts.

    Raises:
        UserError: the text contains no known metric.
    """
    entries = [*_printed(text), *(entry for run in _objects(text) for entry in _entries(run))]
    found = {}
    for name, value in entries:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name in _RATES:
            found[_RATES[name]] = float(value)
        elif (match := _LATENCY.fullmatch(name)) and match[2] in _KINDS:
            statistic = _STATISTICS.get(match[1], match[1])
            found[f"{_KINDS[match[2]]}_{statistic}_s"] = value * 1e-3
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    if not found:
        raise UserError(
            f"{source} holds no result of a serving benchmark; the JSON or the printed table of "
            "`vllm bench serve`, SGLang's bench_serving, aiperf or genai-perf is read"
        )
    return found


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a file: one, a list of them, or one per line."""
    try:
        whole = json.loads(text, parse_int=float)  # of 400 digits, say
    except (ValueError, RecursionError):
        whole = []
        for line in text.splitlines():
            if line.startswith("{"):
                try:
                    whole.append(json.loads(line, parse_int=float))
                except (ValueError, RecursionError):
                    return []
    return [x for x in (whole if isinstance(whole, list) else [whole]) if isinstance(x, dict)]


def _entries(run: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a JSON object; nested latencies as `avg_ttft_ms`."""
    for name, value in run.items():
        if not isinstance(value, dict):
            yield name, value
        elif name in _RATES:
            yield name, value.get("avg")
        else:
            scale = _NAMES["milliseconds"].get(str(value.get("unit")), 1.0)
            for statistic, number in value.items():
                if isinstance(number, int | float):
                    yield f"{statistic}_{name}_ms", number * scale


def _printed(text: str) -> Iterator[tuple[str, float]]:
    """Yield the names and values of a printed table, a line each: `Mean TTFT (ms):  120.00`."""
    for line in map(str.strip, text.splitlines()):
        if len(line) <= _LONGEST_LINE and (match := _PRINTED.fullmatch(line)):
            name = match[1].lower().replace(" ", "_")
            yield (f"{name}_ms" if match[2].lower() == "ms" else name), float(match[3])


def report_of(run: ServingRun) -> str:
    """Return the report of a run with a log of all batches."""
    point, metrics = run.point, run.metrics()
    title = f"Load test of {point.model} on {metrics.gpus} {point.gpu}, {point.scheduler}"
    tables = (_counts(metrics), _latencies(metrics), _periods(run.state))
    return "\n\n".join([title, *("\n".join(lines) for lines in tables)])


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


def _periods(state: ReplicaState) -> Iterator[str]:
    """Yield arrivals, completions, batch size, queue and KV use of each period."""
    log, times = batch_table(state), state.times
    start_s = float(times[:, at.ARRIVAL].min())
    end_s = max(float(log["end_s"].to_numpy().max()), start_s)
    edges = np.linspace(start_s, end_s, PERIODS + 1)
    formed = np.searchsorted(edges, log["formed_s"].to_numpy(), "right") - 1
    period = np.clip(formed, 0, PERIODS - 1)
    batches = np.maximum(np.bincount(period, minlength=PERIODS), 1)
    requests, waiting, blocks = (
        np.bincount(period, log[name].to_numpy(), PERIODS) / batches
        for name in ("requests", "waiting", "kv_blocks")
    )
    arrived, completed = (
        np.histogram(times[:, column], edges)[0] for column in (at.ARRIVAL, at.COMPLETED)
    )
    yield "from s      arrived completed  batch size  waiting  KV in use"
    for i in range(PERIODS):
        yield (
            f"{edges[i] - start_s:<10,.1f}{arrived[i]:>9,}{completed[i]:>10,}{requests[i]:>12,.1f}"
            f"{waiting[i]:>9,.1f}{blocks[i] / state.pool[0, at.TOTAL_BLOCKS]:>11.1%}"
        )


def _line(name: str, value: float | str | None, unit: str = "") -> str:
    if isinstance(value, float):
        value = f"{value:,.3f}" if abs(value) < 100.0 else f"{value:,.0f}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"{name:<34}{'unknown' if value is None else value} {unit}".rstrip()


class ServingLoadTests:
    """Read load-test logs, and format runs as load-test reports."""

    read_log = staticmethod(read_log)

    def lesson(self, errors: Mapping[str, float]) -> str:
        """Return a hint on how to correct the prediction of TPOT, or nothing."""
        error = errors.get("tpot_mean_s", errors.get("tpot_p50_s"))
        if error is None:
            return ""
        return (
            f"Measured TPOT is {1 / (1 + error):.2f} times the prediction. Check model, GPU and "
            "precision; to correct it, give a few measured rows:\n"
            "  sweeper calibrate NAME --measured FILE"
        )

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the load-test report of a design; empty for a steady state."""
        design = point_from(ServingPoint, point)
        if design.fidelity != EVENT:
            return ""
        text = report_of(logged_run(validated_partition(design)))
        return f"{text}\n\n{UNCORRECTED}" if has_own_rows(design) else text


LOAD_TESTS = ServingLoadTests()
