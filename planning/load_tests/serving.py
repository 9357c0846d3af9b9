"""Load tests of serving deployments: read benchmark results, format runs as load-test reports.

`vllm bench serve` and SGLang's `bench_serving` write one flat JSON object per run (SGLang one per
line) and print a table; aiperf and genai-perf write an object per metric, with its unit. The
inter-token latency of the last two is a mean per request, which is TPOT here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from planning.calibrate.deployment import implausible_tpot
from planning.logged_load import at_logged_load, logged_load, stated_in_table
from simulators.composition.engine_defaults import checkpoint_dtype
from simulators.composition.replica import NOTHING
from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.core.folder import read_toml, reader
from simulators.serving.answer.explain import batch_table
from simulators.serving.answer.statistics import STATISTICS
from simulators.serving.answer.summary import ServingRun
from simulators.serving.attribution import Mixtures, mixtures
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.measured.corrections import has_own_rows
from simulators.serving.options import AUTO, EVENT
from simulators.serving.point import ServingPoint
from simulators.serving.run import logged_run
from simulators.serving.simulator import validated_partition
from simulators.workload.llm.parallelism import Parallelism

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
REPORT = Path(__file__).with_suffix(".jinja")
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
    return dict(item for _, metrics in runs_in(text, source) for item in metrics.items())


def runs_in(text: str, source: str) -> list[tuple[Mapping[str, Any], dict[str, float]]]:
    """Return what each run of a log states, and its metrics in seconds and per second.

    Raises:
        UserError: the text contains no known metric.
    """
    runs: list[tuple[Mapping[str, Any], dict[str, float]]] = [
        (run, _metrics(_entries(run))) for run in _objects(text, source)
    ]
    runs = [(dict(stated_in_table(text)), _metrics(_printed(text))), *runs]
    if found := [(run, metrics) for run, metrics in runs if metrics]:
        return found
    raise UserError(
        f"{source} holds no result of a serving benchmark. Known are the JSON or the printed table "
        "of `vllm bench serve`, SGLang's bench_serving, aiperf or genai-perf, rows of InferenceX, "
        "and the metrics of a vLLM server"
    )


def _metrics(entries: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Return named values of a log under the names of metrics."""
    found = {}
    for name, value in entries:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name in _RATES:
            found[_RATES[name]] = float(value)
        elif (match := _LATENCY.fullmatch(name)) and match[2] in _KINDS:
            statistic = _STATISTICS.get(match[1], match[1])
            found[f"{_KINDS[match[2]]}_{statistic}_s"] = value * 1e-3
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _objects(text: str, source: str) -> list[dict[str, Any]]:
    """Return the runs of a log, under the names of `vllm bench serve`."""
    found: list[dict[str, Any]] = reader("serving_logs", "runs_of")(text, source)
    return found


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
    metrics = run.metrics()
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)  # noqa: S701 - text
    environment.filters["line"] = _line
    template = environment.from_string(REPORT.read_text(encoding="utf-8"))
    text = template.render(
        point=run.point,
        m=metrics,
        statistics=STATISTICS,
        latencies={
            words: [1e3 * getattr(metrics, f"{name}_{column}_s") for column in STATISTICS]
            for name, words in LATENCIES.items()
            if getattr(metrics, f"{name}_mean_s") is not None
        },
        periods=list(_periods(run.state)),
    )
    return text.rstrip()


def _periods(state: ReplicaState) -> Iterator[tuple[float, ...]]:
    """Yield start, arrivals, completions, batch size, queue and KV use of each period."""
    log, times = batch_table(state), state.times
    start_s = float(times[:, at.ARRIVAL].min())
    end_s = float(times[:, at.COMPLETED].max())
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
    kv_use = blocks / state.pool[0, at.TOTAL_BLOCKS]
    yield from zip(edges[:-1] - start_s, arrived, completed, requests, waiting, kv_use, strict=True)


def _line(name: str, value: float | str | None, unit: str = "") -> str:
    if isinstance(value, float):
        value = f"{value:,.3f}" if abs(value) < 100.0 else f"{value:,.0f}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"{name:<34}{'unknown' if value is None else value} {unit}".rstrip()


def _doubts(point: Mapping[str, Any], logged: Mapping[str, float]) -> Iterator[str]:
    """Yield a question for a TPOT that the memory of the design's GPUs cannot deliver."""
    design = point_from(ServingPoint, point)
    tpot_s = logged.get("tpot_mean_s", logged.get("tpot_p50_s"))
    if tpot_s is None or design.speculation.method != NOTHING or design.pools.prefill_gpus:
        return
    layout = Parallelism(design.tp, design.pp, design.ep, design.attention_dp)
    dtype = checkpoint_dtype(design.model, design.gpu) if design.dtype == AUTO else design.dtype
    if doubt := implausible_tpot(tpot_s, design.model, design.gpu, layout, dtype):
        yield f"Check the log: {doubt}?"


class ServingLoadTests:
    """Read load-test logs, and format runs as load-test reports."""

    read_log = staticmethod(read_log)

    def at_log(
        self, point: Mapping[str, Any], text: str, source: str
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the fields that give a design the load of a log, and notes on differences."""
        fields, notes = at_logged_load(logged_load(_objects(text, source), text), point, source)
        return fields, [*notes, *_doubts(point, read_log(text, source))]

    def mixtures(
        self, old: Mapping[str, Any], new: Mapping[str, Any], changed: Collection[str] = ()
    ) -> Mixtures:
        """Return the mixtures of two points, which attribute their difference to groups of facts.

        `changed`: options that differ in ways the points do not show, as of two releases.

        Raises:
            Infeasible: one of the designs cannot exist.
            UserError: the designs serve different models, one is not simulated by events, or a
                changed option is unknown.
        """
        first, second = (
            validated_partition(point_from(ServingPoint, point)) for point in (old, new)
        )
        return mixtures(first, second, changed=changed)

    def advice(self, errors: Mapping[str, float]) -> str:
        """Return a hint on how to correct the prediction of TPOT, or nothing."""
        error = errors.get("tpot_mean_s", errors.get("tpot_p50_s"))
        if error is None:
            return ""
        return (
            f"Measured TPOT is {1 / (1 + error):.2f} times the prediction. Check model, GPU and "
            "precision. Three to ten load tests correct it, and later answers:\n"
            "  sweeper calibrate --log FILE [FILE ...] --gpu G"
        )

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the load-test report of a design; empty for a steady state."""
        design = point_from(ServingPoint, point)
        if design.fidelity != EVENT:
            return ""
        text = report_of(logged_run(validated_partition(design)))
        return f"{text}\n\n{UNCORRECTED}" if has_own_rows(design) else text


LOAD_TESTS = ServingLoadTests()
