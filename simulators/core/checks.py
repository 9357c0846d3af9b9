"""Accuracy checks: a measured value with its limit, printed as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

ERROR, COVERAGE, PARITY = "error", "coverage", "parity"
"""Kinds of checks: errors of predictions, coverage of intervals, and parity with another program or
a rule."""


@dataclass(frozen=True)
class Check:
    """A line of `sweeper-lab validate` or of a benchmark: a value and its limit.

    `ok` is None without a limit, and without the measured table behind the check. The limit of a
    coverage is the lower end of its range.
    """

    name: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    ok: bool | None = None
    rows: int = 0
    note: str = ""
    kind: str = ERROR
    peer: float | None = None  # the same figure of a baseline tool, on the rows it supports
    id: str = ""  # identifier, which stays when the name changes

    @property
    def verdict(self) -> str:
        """The verdict: ok, MISSED, or for intervals too wide or too narrow.

        >>> Check("ours", 99.0, "%", limit=85.0, ok=False, kind=COVERAGE).verdict
        'too wide'
        """
        if self.ok is None or self.ok:
            return "" if self.ok is None else "ok"
        if self.kind != COVERAGE or self.value is None or self.limit is None:
            return "MISSED"
        return "too wide" if self.value > self.limit else "too narrow"


def print_checks(checks: Sequence[Check], *, as_json: bool = False) -> None:
    """Print checks as a table or as JSON.

    >>> print_checks([Check("V100 linear MAPE", 4.2, "%", limit=5.0, ok=True, rows=120)])
    name              value  unit  limit  ok  rows  note
    V100 linear MAPE  4.2    %     5      ok  120
    """
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=1))
        return
    header, lines = cells(checks)
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )


def cells(checks: Sequence[Check]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of checks."""
    lines = []
    for check in checks:
        value = "-" if check.value is None else f"{check.value:.4g}"
        limit = "" if check.limit is None else f"{check.limit:g}"
        rows = f"{check.rows:,}" if check.rows else ""
        lines.append([check.name, value, check.unit, limit, check.verdict, rows, check.note])
    return ["name", "value", "unit", "limit", "ok", "rows", "note"], lines
