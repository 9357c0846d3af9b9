"""Readers of serving benchmarks' results: vLLM, SGLang, aiperf and genai-perf.

`vllm bench serve` and SGLang's `bench_serving` write one flat JSON object per run (SGLang one per
line) and print a table; aiperf and genai-perf write an object per metric, with its unit. The
inter-token latency of the last two is a mean per request, which is TPOT here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from simulators.core.errors import UserError

_KINDS = {
    "ttft": "ttft",
    "tpot": "tpot",
    "itl": "itl",
    "e2el": "e2e",
    "e2e_latency": "e2e",
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "request_latency": "e2e",
}
_RATES = {
    "request_throughput": "requests_per_s",
    "output_throughput": "tokens_per_s",
    "output_token_throughput": "tokens_per_s",
    "request_goodput": "goodput_per_s",
    "goodput": "goodput_per_s",
}
_PRINTED = {
    "request throughput": "requests_per_s",
    "output token throughput": "tokens_per_s",
    "request goodput": "goodput_per_s",
}
_LATENCY = re.compile(
    r"(mean|median|p\d\d) (ttft|tpot|itl|e2el|e2e latency) \(ms\):\s+(\d+(?:\.\d*)?)", re.I
)
_RATE = re.compile(r"([a-z ]+) \((?:req|tok)/s\):\s+(\d+(?:\.\d*)?)", re.I)
_LONGEST_LINE = 500
_SHARES = {"avg": "mean", "median": "p50"}
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def measured(text: str, source: str) -> dict[str, float]:
    """Return the metrics of a benchmark's result under the names of the serving simulator.

    Seconds and rates per second; of several runs in one text the last.

    Raises:
        UserError: the text contains no known metric.
    """
    found = _printed(text)
    for run in _objects(text):
        found |= _flat(run) | _nested(run)
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    if not found:
        raise UserError(
            f"{source} holds no result of a serving benchmark; the JSON or the printed table of "
            "`vllm bench serve`, SGLang's bench_serving, aiperf or genai-perf is read"
        )
    return found


def lesson(errors: Mapping[str, float]) -> str:
    """Return a hint on how to correct the prediction of TPOT, or nothing."""
    error = errors.get("tpot_mean_s", errors.get("tpot_p50_s"))
    if error is None:
        return ""
    return (
        f"Measured TPOT is {1 / (1 + error):.2f} times the prediction. Check model, GPU and "
        "precision; to correct it, give a few measured rows:\n"
        "  sweeper calibrate NAME --measured FILE"
    )


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


def _flat(run: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in run.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if match := re.fullmatch(r"(mean|median|p\d\d)_(\w+?)_ms", name):
            if match[2] in _KINDS:
                found[_metric(_KINDS[match[2]], match[1])] = value * 1e-3
        elif name in _RATES:
            found[_RATES[name]] = float(value)
    return found


def _nested(run: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in run.items():
        if not isinstance(value, dict):
            continue
        if name in _KINDS:
            scale = _UNITS.get(str(value.get("unit", "ms")), 1e-3)
            for share in ("avg", "p50", "p90", "p95", "p99", "max"):
                if isinstance(value.get(share), int | float):
                    found[_metric(_KINDS[name], share)] = value[share] * scale
        elif name in _RATES and isinstance(value.get("avg"), int | float):
            found[_RATES[name]] = float(value["avg"])
    return found


def _printed(text: str) -> dict[str, float]:
    """Return the figures of a printed table, a line each."""
    found = {}
    for line in map(str.strip, text.splitlines()):
        if len(line) > _LONGEST_LINE:
            continue
        if match := _LATENCY.fullmatch(line):
            share, kind, value = match.groups()
            name = _metric(_KINDS[kind.lower().replace(" ", "_")], share.lower())
            found[name] = float(value) * 1e-3
        elif (match := _RATE.fullmatch(line)) and match[1].lower() in _PRINTED:
            found[_PRINTED[match[1].lower()]] = float(match[2])
    return found


def _metric(kind: str, share: str) -> str:
    return f"{kind}_{_SHARES.get(share, share)}_s"
