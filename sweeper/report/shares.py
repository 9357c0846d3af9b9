"""Format the evidence behind a design's time: the share per level and the weakest operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulators.core.columns import LEVELS, SHARES
from simulators.core.contract import NamesWeakest, Simulator
from sweeper.report.answers import point_of

LEAST = 0.005
"""Smaller shares of the time are left out."""
_SPOKEN = {"unmodelled": "data sheet"}


def spoken(level: str) -> str:
    """Return the printed name of an evidence level."""
    return _SPOKEN.get(level, level)


def shares_of_row(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of each evidence level in a design's time; empty without such columns."""
    found = {level: row.get(share) for level, share in zip(LEVELS, SHARES, strict=True)}
    return {level: share for level, share in found.items() if share is not None}


def by_measurements(row: Mapping[str, Any]) -> float:
    """Return the share of the time from measured or fitted kernels."""
    shares = shares_of_row(row)
    return shares.get("measured", 0.0) + shares.get("fitted", 0.0)


def in_words(shares: Mapping[str, float]) -> str:
    """Return the shares of at least 0.5 % as text.

    >>> in_words({"measured": 0.25, "fitted": 0.748, "unmodelled": 0.002})
    '25 % measured, 75 % fitted'
    """
    return ", ".join(
        f"{100 * share:.0f} % {spoken(level)}" for level, share in shares.items() if share >= LEAST
    )


def weakest_in_words(simulator: Simulator, row: Mapping[str, Any]) -> str:
    """Return the operator of a design with the weakest evidence, and its device; or nothing."""
    if not isinstance(simulator, NamesWeakest):
        return ""
    weakest = simulator.weakest(point_of(simulator, row))
    if weakest is None:
        return ""
    where = f" on {weakest.on}" if weakest.on else ""
    return f" (weakest: {weakest.name}{where})"
