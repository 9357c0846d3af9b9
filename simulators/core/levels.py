"""What figures rest on: a table of them, a fit to their like, a fit they have left, or nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEVELS = ("measured", "fitted", "extrapolated", "unmodelled")
MEASURED, FITTED, EXTRAPOLATED, UNMODELLED = range(len(LEVELS))
"""Positions in `LEVELS`, the best first."""

SHARES = tuple(f"{level}_share" for level in LEVELS)
"""Columns of every answer: the shares of its time that rest on numbers of each level."""

Shares = NDArray[np.float64]
"""A row for each of `LEVELS`, a column for each point."""


def shares_of(level: NDArray[np.int64] | int) -> Shares:
    """Return the shares of points of which each rests on numbers of one level.

    >>> shares_of(np.array([FITTED, UNMODELLED])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    """
    positions = np.arange(len(LEVELS))[:, None]
    return np.asarray(positions == np.atleast_1d(level), np.float64)
