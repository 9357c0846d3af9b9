"""Grids of decode times from a measured table: medians, laid so that they never fall.

Each knot is the median of the fitted rows on it. A knot nobody measured stands as far from the
formula as its nearest measured neighbour does. Alternating isotonic regressions along both sides
(Dykstra's projections; Dykstra and Robertson, 1982) then find the rising grid nearest to these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.kernels.interpolation_grid import GridTable, nominal, rising, sliced
from simulators.workload.operators import Attention

ON_KNOT = 0.1
"""Rows within a tenth of an octave of a knot speak for it."""

LEAST_ROWS = 40
"""A slice with fewer measured rows is left to the formula."""

GUESSED = 0.02
"""Weight of a knot nobody measured, in rows."""

ROUNDS = 40


def fit_knots(
    attention: Attention,
    measured_s: Floats,
    formula: Callable[[Attention], Floats],
    *,
    alone: bool,
) -> GridTable:
    """Return the grids of all slices that rows enough were measured on.

    Args:
        attention: of the measured rows.
        measured_s: their seconds.
        formula: seconds of any operator, for knots without rows.
        alone: whether heads beyond the widest packing each walk the keys by themselves.
    """
    grids = {}
    for where, rows, pairs, keys in sliced(attention, alone=alone):
        x, y = np.log2(pairs[rows]), np.log2(keys[rows])
        i, j = np.rint(x).astype(np.int64), np.rint(y).astype(np.int64)
        on = (np.abs(x - i) < ON_KNOT) & (np.abs(y - j) < ON_KNOT)
        if on.sum() < LEAST_ROWS:
            continue
        shape = (int(i[on].max()) + 1, int(j[on].max()) + 1)
        guess = np.log(formula(nominal(where, shape, attention, alone=alone)))
        count = np.zeros(shape)
        np.add.at(count, (i[on], j[on]), 1.0)
        known = np.zeros(shape)
        logs = np.log(measured_s[rows][on])
        for a, b in np.argwhere(count > 0).tolist():
            known[a, b] = np.median(logs[(i[on] == a) & (j[on] == b)]) - guess[a, b]
        filled = guess + _from_nearest(known, count > 0)
        grids[where] = nearest_rising(filled, np.maximum(count, GUESSED))
    return GridTable(grids, alone)


def nearest_rising(grid: Floats, weights: Floats) -> Floats:
    """Return the grid nearest in weighted squares that falls along neither side."""
    fitted = grid.copy()
    owed = [np.zeros_like(grid), np.zeros_like(grid)]
    for _ in range(ROUNDS):
        for axis in (0, 1):
            wanted = fitted + owed[axis]
            lines = (wanted.T, weights.T) if axis == 0 else (wanted, weights)
            found = np.stack([_isotonic(v, w) for v, w in zip(*lines, strict=True)])
            fitted = found.T if axis == 0 else found
            owed[axis] = wanted - fitted
    return rising(fitted)


def _isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the nearest rising line: neighbours that fall are pooled to their mean."""
    means: list[float] = []
    sums: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while means and means[-1] > mean:
            before, behind = means.pop(), sums.pop()
            mean = (mean * total + before * behind) / (total + behind)
            total, size = total + behind, size + sizes.pop()
        means.append(mean)
        sums.append(total)
        sizes.append(size)
    return np.repeat(means, sizes)


def _from_nearest(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return values with each unknown one taken from the nearest known one."""
    there = np.argwhere(known)
    every = np.argwhere(np.ones_like(known))
    apart = ((every[:, None, :] - there[None, :, :]) ** 2).sum(axis=2)
    nearest = there[apart.argmin(axis=1)]
    taken: Floats = values[nearest[:, 0], nearest[:, 1]]
    return taken.reshape(values.shape)
