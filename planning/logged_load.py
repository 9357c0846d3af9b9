"""The model and the load that a benchmark's log states, as inputs of the serving simulator.

Result files of `vllm bench serve` and SGLang's `bench_serving` state `model_id`, `request_rate`,
`max_concurrency` and totals of tokens; their printed tables state the load alone. aiperf and
genai-perf state the load below `input_config`, and mean lengths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.core.folder import MODELS, read_toml
from simulators.serving.demand.requests import token_counts
from simulators.serving.options import CLOSED, POISSON
from simulators.serving.point import ServingPoint

NAMES = read_toml(Path(__file__).with_name("load_tests") / "benchmarks.toml")["load"]
_PRINTED = re.compile(r"([a-z0-9 ]+?)(?: \(rps\))?:\s+([\w.,]+)", re.I)
_LONGEST_LINE = 500
RATE_TOLERANCE, LENGTH_TOLERANCE = 0.05, 0.1
"""Relative differences of rates and mean lengths that count as equal."""


@dataclass(frozen=True, kw_only=True)
class LoggedLoad:
    """The load of a benchmark; None or 0 for what its log does not state."""

    model: str = ""
    rate: float | None = None  # requests per second; infinity: all at once, or by clients
    clients: int = 0
    requests: int = 0
    prompt_tokens: float | None = None  # mean
    output_tokens: float | None = None  # mean


def logged_load(runs: Sequence[Mapping[str, Any]], text: str) -> LoggedLoad:
    """Return the load stated by the last of a log's JSON objects, or by its printed table."""
    found = dict(stated_in_table(text))
    for run in runs[-1:]:
        found |= dict(_values(run))
    stated = {ours: found[name] for ours, names in NAMES.items() for name in names if name in found}
    numbers = {name: _number(value) for name, value in stated.items() if name != "model"}
    requests = numbers.get("requests") or 0.0
    lengths = {}
    for kind in ("prompt", "output"):
        mean, total = (numbers.get(f"{kind}_{what}") for what in ("mean", "total"))
        if mean is None and total is not None and requests:
            mean = total / requests
        lengths[f"{kind}_tokens"] = _finite(mean) or None
    return LoggedLoad(
        model=str(stated.get("model", "")),
        rate=numbers.get("rate") or None,
        clients=int(_finite(numbers.get("clients"))),
        requests=int(_finite(requests)),
        **lengths,
    )


def _values(run: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Yield named values of a JSON object; those below `input_config` as `input_config.NAME`."""
    for name, value in run.items():
        if isinstance(value, dict):
            if name == "input_config" or inside:
                yield from _values(value, "input_config.")
            elif "avg" in value:
                yield name, value["avg"]
        else:
            yield f"{inside}{name}", value[0] if isinstance(value, list) and value else value


def stated_in_table(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of a printed table, a line each: `Successful requests:  100`."""
    for line in map(str.strip, text.splitlines()):
        if len(line) <= _LONGEST_LINE and (match := _PRINTED.fullmatch(line)):
            yield match[1].lower().replace(" ", "_"), match[2].replace(",", "")


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def at_logged_load(
    load: LoggedLoad, point: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that give a design the load of a log, and notes on the differences.

    Raises:
        UserError: the log is of another model.
    """
    design = point_from(ServingPoint, point)
    notes = _models(load.model, design.model, source)
    fields: dict[str, Any] = {}
    theirs, ours = [], []
    if load.clients or load.rate is not None:
        clients = load.clients
        if not clients and load.rate == math.inf:  # all requests at once
            clients = load.requests
        is_closed = bool(clients) and (load.rate is None or load.rate == math.inf)
        if is_closed and (design.arrivals.process, design.arrivals.clients) != (CLOSED, clients):
            fields |= {"arrivals.process": CLOSED, "arrivals.clients": clients}
            theirs.append(f"{clients:,} requests at a time")
            ours.append(_rate(design))
        elif not is_closed and load.rate not in (None, math.inf) and not _has_rate(design, load):
            is_open = design.arrivals.process != CLOSED
            kept = {} if is_open else {"arrivals.process": POISSON}
            fields |= {"qps": load.rate, **kept}
            theirs.append(f"{load.rate:.4g} requests per second")
            ours.append(_rate(design))
    lengths = _mean_lengths(design)
    for name, own in lengths.items():
        logged = getattr(load, name)
        if logged is not None and abs(logged / own - 1.0) > LENGTH_TOLERANCE:
            fields[name] = max(1, round(logged))
            theirs.append(f"{logged:,.0f} {name.replace('_', ' ')}")
            ours.append(f"{own:,.0f}")
    if fields and load.requests:
        fields["requests"] = load.requests
    if fields:
        notes.append(
            f"{source} has {', '.join(theirs)} (the stored design: {', '.join(ours)}); predictions "
            "are simulated again at the log's load."
        )
    return fields, notes


def _models(logged: str, own: str, source: str) -> list[str]:
    if not logged:
        return []
    if not MODELS.has(logged):
        return [f"{source} is of '{logged}', which the catalog lacks; the design serves {own}."]
    if load_model(logged).name != load_model(own).name:
        raise UserError(
            f"{source} is of {logged}, and the design serves {own}; compare a design of the "
            "log's model"
        )
    return []


def _has_rate(design: ServingPoint, load: LoggedLoad) -> bool:
    own = design.qps if design.arrivals.process != CLOSED else None
    return own is not None and abs((load.rate or 0.0) / own - 1.0) <= RATE_TOLERANCE


def _rate(design: ServingPoint) -> str:
    if design.arrivals.process == CLOSED:
        return f"{design.arrivals.clients:,} at a time"
    return "the trace's rate" if design.qps is None else f"{design.qps:.4g} per second"


def _mean_lengths(design: ServingPoint) -> dict[str, float]:
    """Return the mean prompt and output tokens of a design's requests."""
    counts = token_counts(design.workload, design.seed, design.requests)
    fixed = (design.prompt_tokens, design.output_tokens)
    means = (
        own * (1.0 - design.lengths.spread / 2.0) if own else max(float(drawn.mean()), 1.0)
        for own, drawn in zip(fixed, counts, strict=True)
    )
    return dict(zip(("prompt_tokens", "output_tokens"), means, strict=True))
