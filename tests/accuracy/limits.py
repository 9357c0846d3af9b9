"""Limits of accuracy lines, and how a line that exceeds its limit is described."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulators.core.checks import Check

_TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("budgets.toml").read_text()
)
WITHOUT_LIMIT: dict[str, int] = _TABLES.pop("without_limit")
"""Number of lines that are not judged, by group of claims."""

LIMITS: dict[str, dict[str, dict[str, Any]]] = _TABLES
"""By group of claims and identifier of the line: the limit, its date and the value before."""


def exceeded(lines: Iterable[Check], limits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each line without a value or above its limit.

    A line without an entry in `limits` is judged by the limit in its claims file, if any.
    """
    found = []
    for line in lines:
        limit = limits.get(line.id, {"limit": line.limit})
        most = limit.get("limit")
        is_own = line.id not in limits
        if (
            line.value is None
            or (is_own and line.ok is False)
            or (not is_own and most is not None and line.value > most)
        ):
            found.append(described(line, limit))
    return found


def unlimited(lines: Iterable[Check], limits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the identifiers of lines with neither a limit of their own nor an entry."""
    return [line.id for line in lines if line.limit is None and line.id not in limits]


def described(line: Check, limit: Mapping[str, Any]) -> str:
    """Return value, limit and relative change of a line.

    >>> described(Check("error", 9.0, "%"), {"limit": 8.0, "date": "2026-11-24", "previous": 10.0})
    'error: 9 %, limit 8 (+12.5 %), set 2026-11-24, before 10'
    """
    if line.value is None or limit.get("limit") is None:
        return f"{line.name}: {line.note}"
    most = float(limit["limit"])
    change = f" ({100.0 * (line.value / most - 1.0):+.1f} %)" if most else ""
    said = f"{line.name}: {line.value:.4g} {line.unit}, limit {most:g}{change}"
    said += f", set {limit['date']}" if "date" in limit else ""
    return said + (f", before {limit['previous']:g}" if "previous" in limit else "")
