"""The main accuracy figures: names of stored checks in `headlines.toml`, values in the package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulators.core.checks import Check

FILE = Path(__file__).with_name("headlines.toml")
HEADER = ("predicted", "mean error", "rows", "baseline")

Known = Mapping[str, Sequence[Check]]
"""Checks by group."""


@dataclass(frozen=True)
class Headline:
    """One row of the accuracy table: `lines` are a label and the name of a check each."""

    group: str
    what: str
    lines: Sequence[tuple[str, str]]
    baseline: str = ""

    def found(self, known: Known) -> list[tuple[str, Check]]:
        """Return the checks that have a value, with their labels."""
        by_name = {c.name: c for c in known.get(self.group, ()) if c.value is not None}
        return [(label, by_name[name]) for label, name in self.lines if name in by_name]

    def cells(self, known: Known) -> tuple[str, str, str, str]:
        """Return the subject, our errors, the number of rows and the baseline's errors."""
        found = self.found(known)
        ours = [f"{label} {_rounded(c.value, c.unit)}".strip() for label, c in found]
        theirs = [_rounded(c.peer, c.unit) for _, c in found if c.peer is not None]
        rows = dict.fromkeys(f"{c.rows:,}" for _, c in found)
        baseline = f"{self.baseline} {', '.join(theirs)}" if theirs else "-"
        return f"{self.group}: {self.what}", ", ".join(ours) or "-", ", ".join(rows), baseline


def headlines() -> list[Headline]:
    """Return the rows of the accuracy table, the most important first."""
    with FILE.open("rb") as stream:
        return [Headline(**one) for one in tomllib.load(stream)["headlines"]]


def table(known: Known) -> str:
    """Return the accuracy table as Markdown."""
    rows = [HEADER, ("---",) * len(HEADER), *(one.cells(known) for one in headlines())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rounded(value: float | None, unit: str) -> str:
    """Return a figure with one digit, whole from 100 on.

    >>> _rounded(9.96, "%"), _rounded(100.0, "%")
    ('10.0 %', '100 %')
    """
    if value is None:
        return "-"
    return f"{value:.{0 if abs(value) >= 99.95 else 1}f} {unit}".strip()
