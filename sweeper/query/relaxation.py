"""The dual of a choice under limits: the least relaxation of one limit that changes the choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
DIGITS = 3
"""Digits of a relaxed limit, which is rounded up."""
_STEPS = 60
"""Bisections of a limit: to the last digits of a number."""


def rounded_up(limit: float) -> float:
    """Return a limit with three digits that is at least as wide.

    >>> rounded_up(0.123401), rounded_up(2.0), rounded_up(41_260.0)
    (0.124, 2.0, 41300.0)
    """
    unit = 10.0 ** (math.floor(math.log10(limit)) - DIGITS + 1)
    count = math.ceil(limit / unit * (1.0 - 1e-12))
    return float(f"{count * unit:.{DIGITS}g}")


def least_limit(
    rows: Iterable[Row], first: Callable[[Row], float], meets: Callable[[Row, float], bool]
) -> float:
    """Return the least limit with which any row meets all requirements; infinite without one.

    Args:
        rows: designs that would change the choice.
        first: returns a limit below which a row surely misses it.
        meets: returns whether a row meets all requirements under a limit; wider limits meet more.

    >>> least_limit([{"s": 3.0}, {"s": 2.0}], lambda row: row["s"], lambda row, s: s >= row["s"])
    2.0
    """
    best = math.inf
    for row in rows:
        low = first(row)
        if low >= best:
            continue
        if meets(row, low):
            best = low
            continue
        high = min(best, 1e6 * low)
        if not meets(row, high):
            continue
        for _ in range(_STEPS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if meets(row, middle) else (middle, high)
        best = min(best, high)
    return best
