"""Prints checks as a table, or as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from simulators.core.contract import Check


def print_checks(checks: Sequence[Check], *, as_json: bool = False) -> None:
    """Print measured values and limits.

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
    """Return the header of a table of checks, and the cells of its lines."""
    lines = []
    for check in checks:
        value = "-" if check.value is None else f"{check.value:.4g}"
        limit = "" if check.limit is None else f"{check.limit:g}"
        rows = f"{check.rows:,}" if check.rows else ""
        lines.append([check.name, value, check.unit, limit, check.verdict, rows, check.note])
    return ["name", "value", "unit", "limit", "ok", "rows", "note"], lines
