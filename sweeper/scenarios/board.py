"""The board of scenarios: what is answered, how plausible, how sure, from how much measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sweeper.report.shares import by_measurements, shares_of_row
from sweeper.report.tables import print_table, print_words
from sweeper.scenarios.scenario import Figure, Outcome

HEADER = ["", "figure", "value", "90 %", "plausible", "measured", "CPU s"]


def print_board(outcomes: Sequence[Outcome], seconds: Sequence[float]) -> None:
    """Print a line for every figure, then what lies outside of its band and why, then the count."""
    lines = [
        line
        for outcome, spent in zip(outcomes, seconds, strict=True)
        for line in _lines(outcome, spent)
    ]
    print_table("", HEADER, lines)
    for outcome in outcomes:
        for said in _misses(outcome):
            print_words(f"{outcome.scenario.id} {said}")
    print_words(in_short(outcomes, sum(seconds)))


def in_short(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return how many are supported and plausible, in one sentence."""
    supported = sum(outcome.supported for outcome in outcomes)
    plausible = sum(outcome.in_band for outcome in outcomes)
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    inside = sum(figure.in_band for figure in figures)
    return (
        f"{supported} of {len(outcomes)} scenarios are supported, {plausible} in band: "
        f"{inside} of {len(figures)} figures; {seconds:.0f} CPU-s."
    )


def as_json(outcomes: Sequence[Outcome], seconds: Sequence[float]) -> str:
    """Return one object for each scenario."""
    return json.dumps(
        [_object(o, spent) for o, spent in zip(outcomes, seconds, strict=True)], indent=1
    )


def _lines(outcome: Outcome, seconds: float) -> list[list[str]]:
    """Return the lines of a scenario: its name, then its figures."""
    rest = f"{_by_measurements(outcome):.0%}" if outcome.rows else "-"
    mark = "" if outcome.in_band else "!"
    value = "" if outcome.supported else "not supported"
    name = f"{outcome.scenario.id} {outcome.scenario.title}"
    figures = [
        [
            "" if figure.in_band else "!",
            f"· {figure.target.name} {figure.target.unit}".rstrip(),
            _short(figure.value),
            "-" if figure.low is None or figure.high is None else _span(figure.low, figure.high),
            _span(*figure.target.band),
            "",
            "",
        ]
        for figure in outcome.figures
    ]
    return [[mark, name, value, "", "", rest, f"{seconds:.1f}"], *figures]


def _misses(outcome: Outcome) -> list[str]:
    """Return a sentence for what is not supported or not plausible."""
    if not outcome.supported:
        return [f"is not supported: {outcome.reason}"]
    return [
        f"{f.target.name} lies outside of its band ({f.target.basis}: {f.target.why})"
        + (f". {f.target.miss}" if f.target.miss else "")
        for f in outcome.figures
        if not f.in_band
    ]


def _object(outcome: Outcome, seconds: float) -> dict[str, Any]:
    return {
        "id": outcome.scenario.id,
        "name": outcome.scenario.name,
        "title": outcome.scenario.title,
        "set": outcome.scenario.set,
        "supported": outcome.supported,
        "in_band": outcome.in_band,
        "reason": outcome.reason or None,
        "metrics": {figure.target.name: _figure(figure) for figure in outcome.figures},
        "shares": shares_of_row(outcome.rows[0]) if outcome.rows else {},
        "seconds": round(seconds, 3),
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "unit": figure.target.unit,
        "low": figure.low,
        "high": figure.high,
        "band": list(figure.target.band),
        "basis": figure.target.basis,
        "why": figure.target.why,
        "in_band": figure.in_band,
    }


def _by_measurements(outcome: Outcome) -> float:
    """Return the least share of the time by measured or fitted numbers, of its rows."""
    return min(by_measurements(row) for row in outcome.rows)


def _short(value: float) -> str:
    """Return a figure in three digits.

    >>> _short(0.54618), _short(12345.6), _short(3.0)
    ('0.546', '12,346', '3')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _span(low: float, high: float) -> str:
    return f"{_short(low)} to {_short(high)}"
