"""Pareto fronts of matrices: the rows that no other row dominates, all columns to be minimised.

One pass compares each row with a window of the front so far (block-nested loops of Börzsönyi,
Kossmann and Stocker, "The skyline operator", 2001). A member that dominates moves up in the window,
so nearly every row is compared with few members. Ties are counted on the way. A front that outgrows
the window is found among the sorted rows that the window's members do not dominate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import (
    Ints,
    array,
    arrays,
    boolean,
    compile_all,
    f8,
    i8,
    kernel,
    matrix,
    void,
)

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SMALL = 20_000
"""Rows up to which plain numpy is quicker than loading a compiled loop that is not loaded yet."""
_WINDOW = 1_000
"""Most members of the window."""
_SIFTERS = 64
"""Members of a full window that rows are compared with before they are sorted."""


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
    if len(values) <= _SMALL and "compiled" not in vars(_window_pass):
        return _sorted_front(values, _scan_in_numpy)
    rows, ties = np.empty(_WINDOW, np.int64), np.empty(_WINDOW, np.int64)
    size = _window_pass(values, rows, ties)
    if size >= 0:
        order = np.argsort(rows[:size])
        return rows[order], ties[order]
    left = np.flatnonzero(~dominated(values, values[rows[:_SIFTERS]]))
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
        _window_pass.compiled  # noqa: B018 - loads the loop, whatever the size of the groups
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
    compile_all(_window_pass, _dominated, _scan)


def _sorted_front(values: Matrix, scan: Callable[[Matrix], Ints]) -> tuple[Ints, Ints]:
    """Find a front by scanning the distinct rows in lexicographic order."""
    valid = np.flatnonzero(~np.isnan(values).any(axis=1))
    order = valid[np.lexsort(values[valid].T[::-1])]  # stable: equal rows keep their order
    ordered = values[order]
    fresh = np.ones(len(ordered), bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(fresh)
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


@kernel(boolean(matrix(f8), i8))
def _has_nan(values: Matrix, row: int) -> bool:
    found = False
    for j in range(values.shape[1]):
        found |= values[row, j] != values[row, j]
    return found


@kernel(i8(matrix(f8), *arrays(i8, 2)))
def _window_pass(values: Matrix, rows: Ints, ties: Ints) -> int:
    """Fill `rows` and `ties` with the front; return its size, or -1 if it does not fit."""
    size = 0
    width = values.shape[1]
    for i in range(values.shape[0]):
        position, out = 0, False
        while position < size:
            m = rows[position]
            member_better, row_better = False, False
            for j in range(width):
                if values[m, j] < values[i, j]:
                    member_better = True
                    if row_better:
                        break
                elif values[m, j] > values[i, j]:
                    row_better = True
                    if member_better:
                        break
            if member_better and row_better:
                position += 1
                continue
            if not member_better and _has_nan(values, i):  # compares as neither
                out = True
                break
            if row_better:  # the row dominates this member
                size -= 1
                rows[position], ties[position] = rows[size], ties[size]
                continue
            out = True
            ties[position] += not member_better
            up = position // 2
            rows[position], rows[up] = rows[up], rows[position]
            ties[position], ties[up] = ties[up], ties[position]
            break
        if not out and not _has_nan(values, i):
            if size == rows.size:
                return -1
            rows[size], ties[size] = i, 1
            size += 1
    return size


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

    Only an earlier row can dominate, and in the first column every earlier row is no worse.
    """
    count, width = ordered.shape
    members, found, size = np.empty((count, width)), np.empty(count, np.int64), 0
    for i in range(count):
        is_dominated = False
        last = 0 if width > 2 else size - 1  # of two columns the last member is best in the second
        for m in range(size - 1, max(last, 0) - 1, -1):
            no_worse = True
            for j in range(width - 1, 0, -1):
                if members[m, j] > ordered[i, j]:
                    no_worse = False
                    break
            if no_worse:
                is_dominated = True
                break
        if not is_dominated:
            members[size] = ordered[i]
            found[size] = i
            size += 1
    return found[:size].copy()
