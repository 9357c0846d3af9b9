"""The board of scenarios: what is answered, how plausible, how sure, from how much measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sweeper.report.layout import blocks
from sweeper.report.shares import by_measurements, shares_of_row
from sweeper.report.tables import print_words, width
from sweeper.scenarios.scenario import Figure, Outcome
from sweeper.terminal import printable

SETS = {"survey": " of the survey", "today": " of today"}
HEADER = ["", "figure", "value", "90 %", "plausible"]


def print_board(outcomes: Sequence[Outcome], seconds: Sequence[float]) -> None:
    """Print every scenario and its figures, what lies outside of its band and why, the count."""
    lines = [line for outcome in outcomes for line in _lines(outcome)]
    for block in blocks(HEADER, lines, width()):
        print("\n".join(block.header))
        rows = iter(block.rows)
        for outcome, spent in zip(outcomes, seconds, strict=True):
            print_words(_heading(outcome, spent))
            for _, row in zip(outcome.figures, rows, strict=False):
                print("\n".join(row))
    print()
    for outcome in outcomes:
        for said in misses_of(outcome):
            print_words(f"{outcome.scenario.id} {said}")
    print_words(f"{in_short(outcomes)} {sum(seconds):.0f} CPU-s.")


def in_short(outcomes: Sequence[Outcome]) -> str:
    """Return how many are supported and plausible, in one sentence."""
    sets = dict.fromkeys(outcome.scenario.set for outcome in outcomes)
    return " ".join(_count([o for o in outcomes if o.scenario.set == one]) for one in sets)


def _count(outcomes: Sequence[Outcome]) -> str:
    """Return how many scenarios of one set are supported, and of those with bands in them."""
    named = SETS.get(outcomes[0].scenario.set, "")
    supported = sum(outcome.supported for outcome in outcomes)
    said = f"{supported} of {len(outcomes)} scenarios{named} are supported"
    figures = [f for outcome in outcomes for f in outcome.figures if f.target.band]
    if not figures:
        return f"{said}; no band has evidence."
    judged = [outcome for outcome in outcomes if outcome.is_judged]
    plausible = sum(outcome.in_band for outcome in judged)
    every = "" if len(judged) == len(outcomes) else f" of {len(judged)}"
    inside = sum(figure.in_band for figure in figures)
    return f"{said}, {plausible}{every} in band: {inside} of {len(figures)} figures."


def as_json(outcomes: Sequence[Outcome], seconds: Sequence[float]) -> str:
    """Return one object for each scenario."""
    return json.dumps(
        [_object(o, spent) for o, spent in zip(outcomes, seconds, strict=True)], indent=1
    )


def page(outcomes: Sequence[Outcome], command: str) -> str:
    """Return the board as a page of Markdown: a line for each scenario, then each figure."""
    heads = [f"| {o.scenario.id} | {o.scenario.title} | {verdict_of(o)} |" for o in outcomes]
    figures = [
        f"| {o.scenario.id} | `{f.target.name}` | {_short(f.value)} {f.target.unit} "
        f"| {_interval(f)} | {_plausible(f)} | {basis_of(f)} |"
        for o in outcomes
        for f in o.figures
    ]
    misses = [f"- {o.scenario.id} {said}" for o in outcomes for said in misses_of(o)]
    parts = [
        f"# Coverage\n\nWritten by `{command}`. A band is a sanity interval, no accuracy target: "
        "what lies outside of it needs an explanation, and has one below.",
        in_short(outcomes),
        "\n".join(["| id | scenario | |", "| --- | --- | --- |", *heads]),
        "## Figures",
        "\n".join(
            ["| id | figure | value | 90 % | plausible | basis |", "| --- " * 6 + "|", *figures]
        ),
        "## What misses, and why",
        "\n".join(misses) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def verdict_of(outcome: Outcome) -> str:
    """Return whether a scenario is supported, answered without a band, in its band or not."""
    if not outcome.supported:
        return "not supported"
    if not outcome.is_judged:
        return "answered"
    return "in band" if outcome.in_band else "outside of its band"


def _interval(figure: Figure) -> str:
    return "-" if figure.low is None or figure.high is None else _span(figure.low, figure.high)


def _plausible(figure: Figure) -> str:
    return "-" if figure.target.band is None else _span(*figure.target.band)


def basis_of(figure: Figure) -> str:
    """Return what the band of a figure rests on."""
    target = figure.target
    return f"{target.basis}: {target.why}" if target.band else "no evidence for a band"


def _heading(outcome: Outcome, seconds: float) -> str:
    """Return what stands above the figures of a scenario."""
    words = [f"{outcome.scenario.id} {outcome.scenario.title}", verdict_of(outcome)]
    if outcome.supported:
        words.append(f"{by_measurements_of(outcome):.0%} by measurements")
    return printable(" · ".join([*words, f"{seconds:.1f} s"]))


def _lines(outcome: Outcome) -> list[list[str]]:
    """Return a line for each figure of a scenario."""
    return [
        ["" if figure.in_band else "!", *map(printable, figure_cells(figure))]
        for figure in outcome.figures
    ]


def figure_cells(figure: Figure) -> tuple[str, str, str, str]:
    """Return what a figure is called with its unit, its value, its interval and its band."""
    name = f"{figure.target.name} {figure.target.unit}".rstrip()
    return name, _short(figure.value), _interval(figure), _plausible(figure)


def misses_of(outcome: Outcome) -> list[str]:
    """Return a sentence for what is not supported or not plausible."""
    if not outcome.supported:
        return [f"is not supported: {outcome.reason}"]
    return [
        f"{f.target.name} lies outside of its band ({basis_of(f)})"
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
        "in_band": outcome.in_band if outcome.is_judged else None,
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
        "band": list(figure.target.band) if figure.target.band else None,
        "basis": figure.target.basis or None,
        "why": figure.target.why or None,
        "in_band": figure.in_band if figure.target.band else None,
    }


def by_measurements_of(outcome: Outcome) -> float:
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
