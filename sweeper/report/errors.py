"""The view `explain --errors`: layers of a design's intervals, and what would narrow them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulators.core.contract import ErrorBudget, ErrorPart, ExplainsErrors, Simulator
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import columns_of
from sweeper.report.answers import point_of
from sweeper.report.evidence import basis_in_words
from sweeper.report.tables import print_table, print_words
from sweeper.text import human

_LEAST = 1e-3
"""Least relative change of an interval's width that is printed."""


def print_errors(
    simulator: Simulator, row: Mapping[str, Any], title: str, *, as_json: bool = False
) -> int:
    """Print the error budget of a stored design."""
    if not isinstance(simulator, ExplainsErrors):
        raise UserError(f"the simulator '{simulator.name}' does not divide errors among layers")
    try:
        budget = simulator.explain_errors(point_of(simulator, row))
    except Infeasible as verdict:
        raise UserError(f"this design is infeasible: {verdict}") from verdict
    if as_json:
        print(json.dumps(dataclasses.asdict(budget), indent=1))
        return 0
    units = {
        column.name: column.metadata.get("unit", "") for column in columns_of(simulator.metrics)
    }
    print_words(title)
    print()
    metrics = list(dict.fromkeys(part.metric for part in budget.parts))
    values = [
        human(float(row[metric]), units[metric])
        + "".join(f" ({_span(budget.parts, metric, row[metric], units[metric])})")
        for metric in metrics
    ]
    print_table("", ["", *metrics], [["", *values], *layer_rows(budget.parts)])
    print_words(
        "A cell has the share of the layer in the squared logarithm of the interval's upper end, "
        "and the interval around 1 that remains without its error."
    )
    print()
    print_measurements(budget, metrics)
    if basis := basis_in_words(simulator, row):
        print()
        print_words(f"{basis}.")
    return 0


def print_measurements(budget: ErrorBudget, metrics: Sequence[str]) -> None:
    """Print the measurements that narrow an interval, and what they do together."""

    def changes(narrows: Mapping[str, float]) -> list[str]:
        return [f"{narrows.get(m, 1.0) - 1.0:+.1%}".replace("-0.0", "+0.0") for m in metrics]

    useful = [m for m in budget.measurements if min(m.narrows.values(), default=1.0) < 1.0 - _LEAST]
    if not useful:
        print_words("No measurement of an operator would narrow these intervals by 0.1 %.")
        return
    lines = [
        ["", f"{place}", one.what, one.layer, *changes(one.narrows)]
        for place, one in enumerate(useful, 1)
    ]
    whole = ["", "", "all of them", "", *changes(budget.together)]
    title = (
        "Measurements that would narrow the intervals most, and the expected change of their width"
    )
    print_table(title, ["", "", "time", "layer", *metrics], [*lines, whole])


def layer_rows(parts: Sequence[ErrorPart]) -> list[list[str]]:
    """Return a row of the table of layers per layer, and one of all."""
    metrics = list(dict.fromkeys(part.metric for part in parts))
    found = []
    for layer in dict.fromkeys(part.layer for part in parts):
        cells = []
        for metric in metrics:
            mine = [part for part in parts if part.metric == metric]
            whole = sum(part.high for part in mine)
            part = sum(part.high for part in mine if part.layer == layer)
            low, high = interval([one for one in mine if one.layer != layer])
            cells.append(f"{part / whole if whole else 0.0:.0%}; {low:.2f} to {high:.2f}")
        found.append([layer, *cells])
    ends = [interval([part for part in parts if part.metric == metric]) for metric in metrics]
    return [*found, ["all", *(f"{low:.2f} to {high:.2f}" for low, high in ends)]]


def interval(parts: Sequence[ErrorPart]) -> tuple[float, float]:
    """Return the ends of an interval around 1 from its parts.

    >>> low, high = interval([ErrorPart(metric="a", layer="b", low=0.0, high=1.0)])
    >>> low, round(high, 3)
    (1.0, 2.718)
    """
    low, high = (math.sqrt(sum(getattr(part, end) for part in parts)) for end in ("low", "high"))
    return math.exp(-low), math.exp(high)


def _span(parts: Sequence[ErrorPart], metric: str, value: float, unit: str) -> str:
    low, high = interval([part for part in parts if part.metric == metric])
    return f"{human(value * low, unit)} to {human(value * high, unit)}"
