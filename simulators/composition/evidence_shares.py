"""Shares of a pass's time that rest on measured, fitted, extrapolated and unmodelled numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simulators.composition.operator_prices import Row
from simulators.composition.replica import Replica
from simulators.core.levels import EXTRAPOLATED, FITTED, LEVELS, Shares
from simulators.workload.operators import Column

Seconds = Mapping[int, Column]
"""By position in `core.levels.LEVELS`."""


def seconds_by_level(rows: Sequence[Row]) -> Seconds:
    """Return what rows take, by what their prices rest on."""
    found: dict[int, Column] = {}
    for row in rows:
        levels = np.asarray(row.level)
        for level in range(int(levels.min()), int(levels.max()) + 1):
            here = np.where(levels == level, row.seconds, 0.0) if levels.ndim else row.seconds
            found[level] = found.get(level, 0.0) + here
    return found


def summed(many: Iterable[tuple[float, Seconds]]) -> Seconds:
    """Return the sum of several parts, each as often as it is there."""
    found: dict[int, Column] = {}
    for count, part in many:
        for level, seconds in part.items():
            found[level] = found.get(level, 0.0) + count * seconds
    return found


def runtime_level(replica: Replica) -> int:
    """Return what launches and waits for the host rest on: a runtime was fitted on some boards."""
    return FITTED if replica.runtime.knows(replica.gpu) else EXTRAPOLATED


def shares(seconds: Seconds) -> Shares:
    """Return the share of each level in the whole, a row for each of `LEVELS`."""
    rows = np.broadcast_arrays(*(seconds.get(level, 0.0) for level in range(len(LEVELS))))
    return np.asarray(np.stack(rows) / np.sum(rows, axis=0), np.float64)
