"""A row is on the Pareto front if no other row is at least as good everywhere and better somewhere.

Most rows of a large table are dominated by the front of a small sample, so one linear pass against
that front removes them (the pivot prefilter of skyline queries). Of the rest, distinct vectors are
visited in lexicographic order: none can then be dominated by a later one, and comparing each with
the front so far is enough (sort-filter skyline, Chomicki et al., 2003).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import array, boolean, f8, i8, kernel, matrix, void

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SAMPLE = 2_000
_SMALL = 5_000
"""Rows up to which plain numpy is quicker than loading a compiled loop."""
_BOOLS = array(boolean)
_FLOATS = matrix(f8)


def front_mask(values: Matrix) -> Mask:
    """Return which rows are on the front, all objectives minimised; ties are all kept.

    Args:
        values: one row per design, one column per objective; rows with NaN are never on it.

    >>> front_mask(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]])).tolist()
    [True, True, False, True]
    """
    values = np.ascontiguousarray(values, np.float64) + 0.0  # -0.0 becomes 0.0
    alive = ~np.isnan(values).any(axis=1)
    if not alive.any():
        return alive
    if len(values) > _SMALL:
        pivots = values[alive][:: max(1, int(alive.sum()) // _SAMPLE)]
        _prefilter(values, _distinct_front(pivots), alive)
    rows = np.flatnonzero(alive)
    front = _distinct_front(values[rows])
    alive[rows] = _member(values[rows], front)
    return alive


def _distinct_front(values: Matrix) -> Matrix:
    """Return the distinct non-dominated vectors, in lexicographic order."""
    ordered = values[np.lexsort(values.T[::-1])]
    fresh = np.ones(len(ordered), bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    distinct = np.ascontiguousarray(ordered[fresh])
    if len(distinct) <= _SMALL:
        return _small_front(distinct)
    keep = np.zeros(len(distinct), bool)
    _skyline(distinct, keep)
    return distinct[keep]


def _small_front(rest: Matrix) -> Matrix:
    """Return the front of a few vectors without waking the compiler."""
    found = []
    while len(rest):
        found.append(rest[0])
        rest = rest[(rest < rest[0]).any(axis=1)]
    return np.array(found).reshape(len(found), rest.shape[1])


def _member(values: Matrix, front: Matrix) -> Mask:
    """Return which rows equal a row of the front."""
    kind = np.dtype((np.void, values.dtype.itemsize * values.shape[1]))
    rows, members = (np.ascontiguousarray(a).view(kind).ravel() for a in (values, front))
    return np.isin(rows, members)


@kernel(void(_FLOATS, _FLOATS, _BOOLS))
def _prefilter(values: Matrix, pivots: Matrix, alive: Mask) -> None:
    """Mark as dead every row that a pivot dominates."""
    for i in range(values.shape[0]):
        if not alive[i]:
            continue
        for p in range(pivots.shape[0]):
            no_worse, better = True, False
            for j in range(values.shape[1]):
                if pivots[p, j] > values[i, j]:
                    no_worse = False
                    break
                better |= pivots[p, j] < values[i, j]
            if no_worse and better:
                alive[i] = False
                break


@kernel(i8(_FLOATS, _BOOLS))
def _skyline(ordered: Matrix, keep: Mask) -> int:
    """Mark the front of distinct vectors in lexicographic order; return its size."""
    members = np.empty(ordered.shape[0], np.int64)
    size = 0
    for i in range(ordered.shape[0]):
        dominated = False
        for position in range(size):
            m = members[position]
            no_worse = True
            for j in range(ordered.shape[1]):
                if ordered[m, j] > ordered[i, j]:
                    no_worse = False
                    break
            if no_worse:
                dominated = True
                # A member that dominates once will dominate again: try it first.
                if position > 0:
                    members[position], members[position // 2] = members[position // 2], m
                break
        if not dominated:
            members[size] = i
            size += 1
            keep[i] = True
    return size
