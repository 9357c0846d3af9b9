"""Shares of a pass's time that rest on measured, fitted, extrapolated and unmodelled numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from simulators.composition.operator_prices import Row
from simulators.composition.replica import Replica
from simulators.core.columns import EXTRAPOLATED, FITTED, LEVELS, Shares
from simulators.workload.operators import Column

K = TypeVar("K")
Seconds = Mapping[int, Column]
"""By position in `core.columns.LEVELS`."""


def seconds_by_level(rows: Sequence[Row]) -> Seconds:
    """Return the seconds of rows by evidence level."""
    found: dict[int, Column] = {}
    for row in rows:
        levels = np.asarray(row.level)
        for level in range(int(levels.min()), int(levels.max()) + 1):
            here = np.where(levels == level, row.seconds, 0.0) if levels.ndim else row.seconds
            found[level] = found.get(level, 0.0) + here
    return found


def add_up(parts: Iterable[tuple[float, Mapping[K, Any]]], zero: Any = 0.0) -> dict[K, Any]:
    """Return the sum of mappings key by key, each multiplied by its count.

    >>> add_up([(2.0, {"a": 1.0}), (1.0, {"a": 1.0, "b": 3.0})])
    {'a': 3.0, 'b': 3.0}
    """
    found: dict[K, Any] = {}
    for count, part in parts:
        for key, value in part.items():
            found[key] = found.get(key, zero) + count * value
    return found


def runtime_level(replica: Replica) -> int:
    """Return what launches and waits for the host rest on: a runtime was fitted on some GPUs."""
    return FITTED if replica.runtime.knows(replica.gpu) else EXTRAPOLATED


def shares(seconds: Seconds) -> Shares:
    """Return the share of each level in the whole, a row for each of `LEVELS`."""
    rows = np.broadcast_arrays(*(seconds.get(level, 0.0) for level in range(len(LEVELS))))
    return np.asarray(np.stack(rows) / np.sum(rows, axis=0), np.float64)
