"""Limits of accuracy lines, and how a line that exceeds its limit is described."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulators.core.checks import Check

LIMITS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("budgets.toml").read_text()
)
"""By group of claims and name of the line: the limit, its date and the value before."""


def exceeded(lines: Iterable[Check], limits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each line above its limit; lines without one have their own."""
    found = []
    for line in lines:
        limit = limits.get(line.name, {"limit": line.limit})
        is_above = line.value is None or line.value > limit["limit"]
        if is_above if line.name in limits else line.ok is False:
            found.append(described(line, limit))
    return found


def described(line: Check, limit: Mapping[str, Any]) -> str:
    """Return value, limit and relative change of a line.

    >>> described(Check("error", 9.0, "%"), {"limit": 8.0, "date": "2026-11-24", "previous": 10.0})
    'error: 9 %, limit 8 (+12.5 %), set 2026-11-24, before 10'
    """
    if line.value is None or limit["limit"] is None:
        return f"{line.name}: {line.note}"
    most = float(limit["limit"])
    change = f" ({100.0 * (line.value / most - 1.0):+.1f} %)" if most else ""
    said = f"{line.name}: {line.value:.4g} {line.unit}, limit {most:g}{change}"
    said += f", set {limit['date']}" if "date" in limit else ""
    return said + (f", before {limit['previous']:g}" if "previous" in limit else "")
