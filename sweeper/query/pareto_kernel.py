"""Pareto fronts of matrices: the rows that no other row dominates, all columns to be minimised.

One pass with a window of the front so far settles most tables: nearly every row is dominated by one
of the few rows that dominated something a moment ago (block-nested loops of Börzsönyi, Kossmann and
Stocker, "The skyline operator", 2001, with its members moved up when they win). Ties are counted on
the way. Where the front outgrows the window, the window only sifts, and what is left is divided and
conquered (Kung, Luccio and Preparata, "On finding the maxima of a set of vectors", 1975).
"""

from __future__ import annotations

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
"""Rows up to which plain numpy is quicker than loading a compiled loop, where none is loaded."""
_WINDOW = 1_000
"""Front members above which divide and conquer is cheaper than the window."""
_LEAF, _SWEEP = 20_000, 2_000
"""Pairs of rows that are compared outright at the bottom of the division; fewer where two columns
are left, which one sweep settles."""
_SIFTERS = 64
"""Members of an overflowing window that sift: those that won last, which the window keeps first."""


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
        return _small_front(values)
    rows, ties = np.empty(_WINDOW, np.int64), np.empty(_WINDOW, np.int64)
    size = _window_pass(values, rows, ties)
    if size < 0:
        return _large_front(values, rows)
    order = np.argsort(rows[:size])
    return rows[:size][order], ties[:size][order]


def group_fronts(values: Matrix, groups: Ints) -> tuple[Ints, Ints]:
    """Return the same of each group of rows on its own, in the order of the rows.

    Args:
        values: as for `distinct_front`.
        groups: a number for each row; rows of one number are one group.

    >>> rows, _ = group_fronts(np.array([[1.0], [2.0], [4.0], [3.0]]), np.array([0, 0, 1, 1]))
    >>> rows.tolist()
    [0, 3]
    """
    order = np.argsort(groups, kind="stable")
    ordered = np.ascontiguousarray(values[order], np.float64)
    ends = np.append(np.flatnonzero(np.diff(groups[order])) + 1, len(order))
    kept, ties = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    window = _window_pass.compiled if len(order) > _SMALL else None
    size = lo = 0
    for hi in ends.tolist():
        rows, counts = kept[size : size + _WINDOW], ties[size : size + _WINDOW]
        found = window(ordered[lo:hi], rows, counts) if window and hi > lo else -1
        if found < 0:  # few rows in all, or a front that outgrows the window
            members, equal = distinct_front(ordered[lo:hi])
            found = len(members)
            kept[size : size + found], ties[size : size + found] = members, equal
        kept[size : size + found] += lo
        size, lo = size + found, hi
    kept, ties = order[kept[:size]], ties[:size]
    by_row = np.argsort(kept)
    return kept[by_row], ties[by_row]


def dominated(values: Matrix, members: Matrix) -> Mask:
    """Return which rows some member dominates: no worse anywhere, better somewhere."""
    alive = np.ones(len(values), bool)
    _sift(np.ascontiguousarray(values), np.ascontiguousarray(members), alive)
    return ~alive


def warm_up() -> None:
    """Compile the loops, or load them from the cache."""
    compile_all(_window_pass, _sift, _strike, _strike_by_sweep)


def _small_front(values: Matrix) -> tuple[Ints, Ints]:
    """Find the front of a few rows without waking the compiler."""
    valid = np.flatnonzero(~np.isnan(values).any(axis=1))
    ordered, first, ties = _distinct(values[valid])
    rest, found = np.arange(len(ordered)), []
    while len(rest):
        found.append(rest[0])
        rest = rest[(ordered[rest] < ordered[rest[0]]).any(axis=1)]
    return _by_row(valid[first], ties, np.array(found, np.int64))


def _large_front(values: Matrix, members: Ints) -> tuple[Ints, Ints]:
    """Find a front of thousands: sift with the window's members, then divide what is left."""
    alive = np.asarray(~np.isnan(values).any(axis=1), bool)
    _sift(values, np.ascontiguousarray(values[members[:_SIFTERS]]), alive)
    left = np.flatnonzero(alive)
    ordered, first, ties = _distinct(values[left])
    return _by_row(left[first], ties, _divide(ordered, 0, len(ordered)))


def _by_row(first: Ints, ties: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(first[chosen])
    return first[chosen][order], ties[chosen][order]


def _distinct(values: Matrix) -> tuple[Matrix, Ints, Ints]:
    """Return the distinct rows in lexicographic order, the first row of each and their counts."""
    order = np.lexsort(values.T[::-1])  # stable: equal rows keep their order
    ordered = values[order]
    fresh = np.ones(len(ordered), bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(fresh)
    ties = np.diff(np.append(starts, len(ordered)))
    return np.ascontiguousarray(ordered[starts]), order[starts], ties


def _divide(ordered: Matrix, lo: int, hi: int) -> Ints:
    """Return the front of distinct rows `lo` to `hi`, which are in lexicographic order."""
    if (hi - lo) ** 2 <= 4 * _LEAF:
        rows = np.arange(lo, hi)
        dominated = np.zeros(hi - lo, bool)
        _strike(ordered, rows, rows, 0, dominated)
        return rows[~dominated]
    middle = (lo + hi) // 2
    better, worse = _divide(ordered, lo, middle), _divide(ordered, middle, hi)
    dominated = np.zeros(len(worse), bool)
    # In lexicographic order nothing late dominates anything early, and the first column is decided.
    _strike_by_halves(ordered, better, worse, 1, dominated, np.arange(len(worse)))
    return np.concatenate([better, worse[~dominated]])


def _strike_by_halves(
    ordered: Matrix, better: Ints, worse: Ints, column: int, dominated: Mask, at: Ints
) -> None:
    """Mark which of `worse` some row of `better` dominates in the columns from `column` on.

    `at` says where in `dominated` each row of `worse` has its mark.
    """
    if not len(better) or not len(worse):
        return
    left_over = ordered.shape[1] - column
    if left_over == 2 and len(better) * len(worse) > _SWEEP:
        ours = better[np.argsort(ordered[better, column])]
        order = np.argsort(ordered[worse, column])
        marks = np.zeros(len(worse), bool)
        _strike_by_sweep(ordered, ours, worse[order], column, marks)
        dominated[at[order[marks]]] = True
        return
    if left_over < 2 or len(better) * len(worse) <= _LEAF:
        marks = np.zeros(len(worse), bool)
        _strike(ordered, better, worse, column, marks)
        dominated[at[marks]] = True
        return
    ours, theirs = ordered[better, column], ordered[worse, column]
    pivot = np.median(ours)
    below, under = ours < pivot, theirs < pivot
    if not below.any():  # half of them or more are equal here: cut above them instead
        above, reached, high = ours > pivot, theirs >= pivot, theirs > pivot
        _strike_by_halves(
            ordered, better[~above], worse[reached], column + 1, dominated, at[reached]
        )
        if above.any():
            _strike_by_halves(ordered, better[above], worse[high], column, dominated, at[high])
        return
    # What is cut off below cannot be dominated by what is above, and is smaller in this column.
    _strike_by_halves(ordered, better[below], worse[~under], column + 1, dominated, at[~under])
    _strike_by_halves(ordered, better[below], worse[under], column, dominated, at[under])
    left = ~under & ~dominated[at]
    _strike_by_halves(ordered, better[~below], worse[left], column, dominated, at[left])


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
            if not member_better and _has_nan(values, i):  # compares as neither: rare, so seen late
                out = True
                break
            if row_better:  # the row dominates this member: out it goes
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
def _sift(values: Matrix, members: Matrix, alive: Mask) -> None:
    """Mark as dead every row that a member dominates."""
    order = np.arange(members.shape[0])
    for i in range(values.shape[0]):
        if not alive[i]:
            continue
        for position in range(order.size):
            m = order[position]
            no_worse, better = True, False
            for j in range(values.shape[1]):
                if members[m, j] > values[i, j]:
                    no_worse = False
                    break
                better |= members[m, j] < values[i, j]
            if no_worse and better:
                alive[i] = False
                order[position], order[position // 2] = order[position // 2], m
                break


@kernel(void(matrix(f8), array(i8), array(i8), i8, array(boolean)))
def _strike(values: Matrix, better: Ints, worse: Ints, column: int, dominated: Mask) -> None:
    """Mark which of `worse` another row of `better` is no worse than, from `column` on."""
    for w in range(worse.size):
        row = worse[w]
        for b in range(better.size):
            other = better[b]
            if other == row:
                continue
            no_worse = True
            for j in range(column, values.shape[1]):
                if values[other, j] > values[row, j]:
                    no_worse = False
                    break
            if no_worse:
                dominated[w] = True
                break


@kernel(void(matrix(f8), array(i8), array(i8), i8, array(boolean)))
def _strike_by_sweep(
    values: Matrix, better: Ints, worse: Ints, column: int, dominated: Mask
) -> None:
    """Do the same for the last two columns, both lists being sorted by the first of them."""
    b, lowest = 0, np.inf
    for w in range(worse.size):
        while b < better.size and values[better[b], column] <= values[worse[w], column]:
            lowest = min(lowest, values[better[b], column + 1])
            b += 1
        dominated[w] = lowest <= values[worse[w], column + 1]
