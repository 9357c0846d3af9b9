"""Pareto fronts of matrices: the rows that no other row dominates, all columns to be minimised.

Rows that a few strong rows dominate are removed first. The others are sorted by their columns, so
that only an earlier row can dominate a later one, and each is compared with the front so far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Ints, array, boolean, compile_all, f8, i8, kernel, matrix, void

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SMALL = 20_000
"""Rows up to which plain numpy is quicker than loading a compiled loop that is not loaded yet."""
_MANY, _STRIDE, _STRONG = 2_000, 32, 32
"""Of more than `_MANY` rows, all are first compared with at most `_STRONG` members of the front of
every `_STRIDE`-th row."""
_BLOCK = 128
"""Members that a row is compared with at a time, by vector instructions."""


def distinct_front(values: Matrix) -> tuple[Ints, Ints]:
    """Return the first row of each distinct vector on the front, and how many rows equal it.

    Args:
        values: one row per design, one column per objective, all to be minimised; a row with NaN
            is never on the front.

    >>> rows, ties = distinct_front(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]]))
    >>> rows.tolist(), ties.tolist()
    ([0, 1], [2, 1])
    """
    values = np.ascontiguousarray(values, np.float64)
    if len(values) <= _SMALL and "compiled" not in vars(_scan):
        return _sorted_front(values, _scan_in_numpy)
    left = np.arange(len(values))
    if len(values) > _MANY:
        sample = values[::_STRIDE]
        strong = sample[distinct_front(sample)[0]]
        ranks = np.argsort(np.argsort(strong, axis=0), axis=0).sum(axis=1)
        strong = strong[np.argsort(ranks)[:_STRONG]]
        left = np.flatnonzero(~dominated(values, strong))
    members, ties = _sorted_front(values[left], _scan)
    return left[members], ties


def group_fronts(values: Matrix, groups: Ints) -> tuple[Ints, Ints]:
    """Return the front of each group of rows, in the order of the rows.

    Args:
        values: as for `distinct_front`.
        groups: the group number of each row.

    >>> rows, _ = group_fronts(np.array([[1.0], [2.0], [4.0], [3.0]]), np.array([0, 0, 1, 1]))
    >>> rows.tolist()
    [0, 3]
    """
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    if len(order) > _SMALL:
        _scan.compiled  # noqa: B018 - loads the loop, whatever the size of the groups
    kept, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in np.split(order, ends):
        members, ties = distinct_front(values[rows])
        kept.append(rows[members])
        counts.append(ties)
    rows = np.concatenate(kept)
    by_row = np.argsort(rows)
    return rows[by_row], np.concatenate(counts)[by_row]


def dominated(values: Matrix, members: Matrix) -> Mask:
    """Return which rows some member dominates: no worse anywhere, better somewhere."""
    found = np.zeros(len(values), bool)
    _dominated(np.ascontiguousarray(values), np.ascontiguousarray(members), found)
    return found


def warm_up() -> None:
    """Compile the loops, or load them from the cache."""
    compile_all(_dominated, _scan)


def _sorted_front(values: Matrix, scan: Callable[[Matrix], Ints]) -> tuple[Ints, Ints]:
    """Find a front by scanning the distinct rows in lexicographic order."""
    valid = np.flatnonzero(~np.isnan(values).any(axis=1))
    order = valid[np.lexsort(values[valid].T[::-1])]  # stable: equal rows keep their order
    ordered = values[order]
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(is_new)
    ties, first = np.diff(np.append(starts, len(order))), order[starts]
    found = scan(ordered[starts])
    found = found[np.argsort(first[found])]
    return first[found], ties[found]


def _scan_in_numpy(ordered: Matrix) -> Ints:
    """Return the rows that no other row dominates, as `_scan` does, without compiled code."""
    left, found = np.arange(len(ordered)), []
    while len(left):
        found.append(left[0])
        left = left[(ordered[left] < ordered[left[0]]).any(axis=1)]
    return np.array(found, np.int64)


@kernel(void(matrix(f8), matrix(f8), array(boolean)))
def _dominated(values: Matrix, members: Matrix, found: Mask) -> None:
    """Mark every row that a member dominates; a member that dominates moves up."""
    order = np.arange(members.shape[0])
    for i in range(values.shape[0]):
        for position in range(order.size):
            m = order[position]
            no_worse, better = True, False
            for j in range(values.shape[1]):
                if members[m, j] > values[i, j]:
                    no_worse = False
                    break
                better |= members[m, j] < values[i, j]
            if no_worse and better:
                found[i] = True
                order[position], order[position // 2] = order[position // 2], m
                break


@kernel(array(i8)(matrix(f8)))
def _scan(ordered: Matrix) -> Ints:
    """Return the rows that no other row dominates; rows are distinct and sorted by columns.

    Only an earlier row can dominate, and in the first column every earlier row is no worse. The
    members are held by columns; a block of them is compared without branches.
    """
    count, width = ordered.shape
    members, found, size = np.empty((width, count)), np.empty(count, np.int64), 0
    no_worse = np.empty(_BLOCK, np.uint8)
    for i in range(count):
        is_dominated, start = False, 0
        while start < size and not is_dominated:
            block = min(_BLOCK, size - start)
            no_worse[:] = 1
            for j in range(1, width):
                value = ordered[i, j]
                for b in range(block):
                    no_worse[b] &= members[j, start + b] <= value
            hits = 0
            for b in range(block):
                hits |= no_worse[b]
            is_dominated = hits != 0
            start += _BLOCK
        if not is_dominated:
            members[:, size] = ordered[i]
            found[size] = i
            size += 1
    return found[:size].copy()
