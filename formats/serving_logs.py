"""Read load tests and server metrics of other tools as runs in the names of `vllm bench serve`.

- Result rows of InferenceX (`agg_*.json`, or rows of its database): latencies in seconds, and the
  launch that was measured: GPU, engine, precision, parallelism.
- Metrics of a vLLM server, as its `/metrics` prints them for Prometheus. Histograms give means
  since its start. The number of requests at a time is the number of generated tokens per
  iteration: each running request generates one token in an iteration.

Objects of `vllm bench serve`, SGLang's `bench_serving`, AIPerf and GenAI-Perf stay as they are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.core.folder import GPUS, MODELS, read_toml

Run = dict[str, Any]

NAMES = read_toml(Path(__file__).with_suffix(".toml"))
LAUNCH = "launch"
"""Key of a run: what was launched, by the name of a column of measured rows."""
TRAFFIC = "is_traffic"
"""Key of a run: whether its requests came at their own rate, not from a fixed number of clients."""

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+\d+)?"
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIX = "vllm:"
_ITERATIONS = "iteration_tokens_total_count"


def runs_of(text: str, source: str) -> list[Run]:
    """Return the runs of a log; empty for a text without JSON objects and server metrics.

    A file has one JSON object, a list of objects, or one object per line.

    Raises:
        UserError: the log called `source` is of a deployment that is not modelled, or of several
            models.
    """
    if re.search(rf"^{_PREFIX}", text, re.MULTILINE):
        return [_server_run(text, source)]
    return [
        _inferencex_run(run, f"{source}: row {number}") if _is_inferencex(run) else run
        for number, run in enumerate(_objects(text), 1)
    ]


def _objects(text: str) -> list[Run]:
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


def _is_inferencex(run: Mapping[str, Any]) -> bool:
    return {"conc", "isl", "osl"} <= {*run}


def _inferencex_run(row: Mapping[str, Any], where: str) -> Run:
    """Return a result row of InferenceX as a run."""
    inside = row.get("metrics")
    row = {**row, **(inside if isinstance(inside, dict) else {})}
    if _is_true(row.get("disagg")):
        raise UserError(
            f"{where} describes separate prefill and decode pools, which are not calibrated"
        )
    if str(row.get("spec_decoding", row.get("spec_method", "none"))) not in ("none", "", "None"):
        raise UserError(f"{where} uses speculative decoding, which logs do not calibrate")
    latencies = {
        f"{name}_ms": 1e3 * value
        for name, value in row.items()
        if re.fullmatch(r"(mean|median|p\d\d)_(ttft|tpot|itl|e2el)", name)
        and isinstance(value, int | float)
    }
    if not latencies:
        raise UserError(f"{where} states no latencies, such as mean_tpot in seconds")

    def degree(*names: str) -> int:
        name = next((name for name in names if row.get(name) is not None), "")
        return round(_above_zero(row, name, where)) if name else 1

    tp, has_ranks = (
        degree("tp", "decode_tp"),
        row.get("dp_attention", row.get("decode_dp_attention")),
    )
    launch: Run = {"tp": tp, "ep": degree("ep", "decode_ep"), "attention_dp": 1}
    if _is_true(has_ranks):
        launch |= {"tp": 1, "attention_dp": tp}
    model = str(row.get("model", ""))
    if gpu := inferencex_gpu(str(row.get("hw", row.get("hardware", "")))):
        launch["gpu"] = gpu
    launch["framework"] = inferencex_engine(str(row.get("framework", "")))
    if word := str(row.get("precision", "")):
        launch["dtype"] = inferencex_dtype(model, word)
    return {
        **latencies,
        "model_id": model,
        "max_concurrency": _above_zero(row, "conc", where),
        "mean_input_tokens": INFERENCEX_MEAN * _above_zero(row, "isl", where),
        "mean_output_tokens": INFERENCEX_MEAN * _above_zero(row, "osl", where),
        LAUNCH: launch,
    }


def _above_zero(row: Mapping[str, Any], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < math.inf:
        raise UserError(f"{where}: {name} is {row[name]!r}, not a number above zero")
    return value


def inferencex_gpu(word: str) -> str:
    """Return the GPU that InferenceX names, as in `b200-nvs`; empty for an unknown one."""
    name = word.partition("-")[0]
    known = (GPUS.name_of(one) for one in (name, f"{name}_sxm") if name and GPUS.has(one))
    return next(known, "")


def inferencex_engine(word: str) -> str:
    """Return the engine that InferenceX names.

    >>> inferencex_engine("trt"), inferencex_engine("sglang-disagg")
    ('trtllm', 'sglang')
    """
    name = word.partition("-")[0]
    return str(NAMES["frameworks"].get(name, name))


def inferencex_dtype(model: str, word: str) -> str:
    """Return the precision of a model's checkpoint that InferenceX calls `fp8` or `fp4`."""
    formats = load_model(model).formats if MODELS.has(model) else ()
    return next((dtype for dtype in formats if word in dtype), word)


INFERENCEX_MEAN = 0.9
"""Mean length over the stated length: InferenceX draws lengths between 80 % and 100 %."""


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "1.0")


def _server_run(text: str, source: str) -> Run:
    """Return the means of a vLLM server's metrics since its start as a run."""
    totals: dict[str, float] = {}
    models: dict[str, None] = {}
    engines: dict[str, None] = {}
    for name, labels, value in _samples(text):
        totals[name] = totals.get(name, 0.0) + value
        if name == _ITERATIONS:
            engines[labels.get("engine", "")] = None
        if model := labels.get("model_name"):
            models[model] = None
    if len(models) > 1:
        raise UserError(f"{source} has metrics of {len(models)} models: {', '.join(models)}")
    if totals.get("spec_decode_num_drafts_total"):
        raise UserError(
            f"{source} describes a server with speculative decoding, which logs do not calibrate"
        )
    means: dict[str, float] = {}
    for ours, theirs in NAMES["histograms"].items():
        for name in theirs:
            if count := totals.get(f"{name}_count"):
                means.setdefault(ours, totals.get(f"{name}_sum", 0.0) / count)
    iterations = totals.get(_ITERATIONS, 0.0)
    if "tpot" not in means or not iterations:
        raise UserError(
            f"{source} lacks the histograms of time per output token and tokens per iteration; has "
            "the vLLM server answered a request?"
        )
    running = totals.get("generation_tokens_total", 0.0) / iterations * len(engines)
    lengths = {
        f"mean_{name}": means[name] for name in ("input_tokens", "output_tokens") if name in means
    }
    latencies = {
        f"mean_{name}_ms": 1e3 * means[name] for name in ("ttft", "tpot", "e2el") if name in means
    }
    return {
        **latencies,
        **lengths,
        "model_id": next(iter(models), ""),
        "max_concurrency": max(1, round(running)),
        TRAFFIC: True,
    }


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name without prefix, labels and value of each sample of vLLM."""
    for line in text.splitlines():
        if not line.startswith(_PREFIX) or not (match := _SAMPLE.fullmatch(line.strip())):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            yield (
                match["name"].removeprefix(_PREFIX),
                dict(_LABEL.findall(match["labels"] or "")),
                value,
            )
