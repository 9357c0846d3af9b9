"""Pareto fronts of matrices, their ranks, crowding distances and hypervolumes.

All columns are to be minimised. The library moocore finds non-dominated rows and computes the
hypervolume (Zitzler and Thiele, "Multiobjective optimization using evolutionary algorithms", 1998).
Ranks and crowding distances follow Deb et al., "A fast and elitist multiobjective genetic
algorithm: NSGA-II" (2002); epsilon fronts follow Laumanns et al., "Combining convergence and
diversity in evolutionary multiobjective optimization" (2002).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Ints

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

_LARGEST = np.finfo(np.float64).max
_LARGE, _SAMPLE = 20_000, 1_000
"""Rows above which all rows are first compared with a few strong rows of a sample, and its size."""
_STRONG, _LEAST, _WORTHWHILE = 16, 0.0025, 0.05
"""Most strong rows, and the least share of the sample that each and that all of them dominate:
where objectives conflict, the comparison removes too few rows."""
_CANDIDATES = 128
_FEW = 500
"""Rows up to which comparing all with each other takes less time than the import of moocore."""


def distinct_front(values: Matrix) -> tuple[Ints, Ints]:
    """Return the first row of each distinct vector on the front, and the number of equal rows.

    `values` has one row per design and one column per objective. A row with NaN is never on the
    front.

    >>> rows, ties = distinct_front(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]]))
    >>> rows.tolist(), ties.tolist()
    ([0, 1], [2, 1])
    """
    rows = nondominated(values)
    vectors = _taken(values, rows) + 0.0  # -0.0 equals 0.0
    ordered = np.sort(vectors[:, 0])
    if (ordered[1:] > ordered[:-1]).all():  # no two vectors are equal
        return rows, np.ones(len(rows), np.int64)
    _, first, ties = np.unique(vectors, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return rows[first[order]], ties[order]


def nondominated(values: Matrix) -> Ints:
    """Return the rows that no other row dominates, equal rows included."""
    left = np.arange(len(values))
    with np.errstate(invalid="ignore"):
        has_nan = np.isnan(values.sum())  # a tenth of the time of looking at each value
    if has_nan:
        left = left[~np.isnan(values).any(axis=1)]
    left = _undominated(values, left, 1)
    if len(left) <= _FEW:
        few = _taken(values, left)
        return left[~dominated(few, few)]
    import moocore  # here, since it loads an HTTP client for its data sets: a tenth of a second

    order = left[np.argsort(values[left, 0])]  # a fifth faster than in any other order
    finite = _taken(values, order).clip(-_LARGEST, _LARGEST)  # moocore crashes on infinity
    is_best: Mask = moocore.is_nondominated(finite, keep_weakly=True)
    return np.sort(order[is_best])


def _taken(values: Matrix, rows: Ints) -> Matrix:
    """Return `values[rows]`, several times as fast."""
    if values.flags.f_contiguous:
        return np.take(values.T, rows, axis=1).T
    return np.take(values, rows, axis=0)


def _undominated(values: Matrix, rows: Ints, layers: int) -> Ints:
    """Return the rows that strong rows of the last layer of a sample do not dominate.

    Dominated rows are behind that layer. Few rows, and rows of conflicting objectives, all remain.
    """
    while len(rows) > _LARGE:
        mine = values if len(rows) == len(values) else _taken(values, rows)
        sample = mine[:: len(mine) // _SAMPLE | 1]  # odd, as most periods of grids are not
        strong = strongest(sample[rank_layers(sample, layers) == layers], sample)
        if dominated(sample, strong).mean() < _WORTHWHILE:
            break
        rows = rows[~dominated(mine, strong)]
    return rows


def strongest(members: Matrix, sample: Matrix) -> Matrix:
    """Return the members that together dominate most of a sample, the strongest first."""
    members = members[np.linspace(0, len(members) - 1, min(_CANDIDATES, len(members)), dtype=int)]
    is_dominated = np.ones((len(members), len(sample)), bool)
    for member, value in zip(members.T, sample.T, strict=True):
        is_dominated &= value > member[:, None]
    found: list[int] = []
    while len(found) < min(_STRONG, len(members)):
        counts = np.count_nonzero(is_dominated, axis=1)
        found.append(int(counts.argmax()))
        if counts[found[-1]] < _LEAST * len(sample):
            break
        is_dominated = is_dominated[:, ~is_dominated[found[-1]]]
    return members[found]


def dominated(values: Matrix, members: Matrix) -> Mask:
    """Return a mask of the rows that a member dominates: no worse anywhere, better somewhere."""
    columns = list(np.ascontiguousarray(values.T))
    left, found = np.arange(len(values)), np.zeros(len(values), bool)
    for member in members:
        first, *others = columns
        is_no_better = first >= member[0]
        for column, value in zip(others, member[1:], strict=True):
            is_no_better &= column >= value
        equal = np.flatnonzero(is_no_better & (first == member[0]))
        is_no_better[equal] = (values[left[equal]] != member).any(axis=1)
        found |= is_no_better
        if 2 * np.count_nonzero(found) > len(found):  # compare fewer rows from here on
            kept = np.flatnonzero(~found)
            left, found = left[kept], np.zeros(len(kept), bool)
            columns = [np.take(column, kept) for column in columns]
    mask = np.ones(len(values), bool)
    mask[left[~found]] = False
    return mask


def group_fronts(values: Matrix, groups: Ints) -> tuple[Ints, Ints]:
    """Return the distinct front of each group of rows, in the order of the rows.

    >>> rows, _ = group_fronts(np.array([[1.0], [2.0], [4.0], [3.0]]), np.array([0, 0, 1, 1]))
    >>> rows.tolist()
    [0, 3]
    """
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    kept, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in np.split(order, ends):
        members, ties = distinct_front(values[rows])
        kept.append(rows[members])
        counts.append(ties)
    rows = np.concatenate(kept)
    by_row = np.argsort(rows)
    return rows[by_row], np.concatenate(counts)[by_row]


def rank_layers(values: Matrix, layers: int | None = None) -> Ints:
    """Return the layer of each row: 1 on the front, 2 on the front of the other rows, and so on.

    Rows behind the last of `layers` layers (default: all), and rows with NaN, have layer 0.

    >>> rank_layers(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [3.0, 3.0]])).tolist()
    [1, 1, 2, 3]
    """
    ranks = np.zeros(len(values), np.int64)
    left = np.flatnonzero(~np.isnan(values).any(axis=1))
    if layers is not None:
        left = _undominated(values, left, layers)
    layer = 0
    while len(left) and (layers is None or layer < layers):
        layer += 1
        on_front = nondominated(_taken(values, left))
        ranks[left[on_front]] = layer
        left = np.delete(left, on_front)
    return ranks


def crowding_distance(front: Matrix) -> Matrix:
    """Return the crowding distance of each front member: the gap between the neighbours' values.

    The gaps of the objectives are added, each in units of the objective's range on the front. A
    member with the smallest or largest value of an objective has an infinite distance.

    >>> crowding_distance(np.array([[0.0, 4.0], [1.0, 2.0], [4.0, 0.0]])).tolist()
    [inf, 2.0, inf]
    """
    distances = np.zeros(len(front))
    for column in front.T:
        order = np.argsort(column, kind="stable")
        ordered = column[order]
        distances[order[[0, -1]]] = np.inf
        if (width := ordered[-1] - ordered[0]) > 0:
            distances[order[1:-1]] += (ordered[2:] - ordered[:-2]) / width
    return distances


def epsilon_front(values: Matrix, epsilon: Sequence[float]) -> Ints:
    """Return the rows of a thinned front: every front member is within epsilon of a returned row.

    `epsilon` divides each objective into cells of this size. Of each non-dominated cell, the row
    nearest to the cell's best corner is returned. For relative steps, pass logarithms.

    >>> epsilon_front(np.array([[1.0, 9.0], [1.1, 8.95], [5.0, 1.0]]), [1.0, 1.0]).tolist()
    [1, 2]
    """
    steps = np.asarray(epsilon, np.float64)
    if not (steps > 0).all():
        raise UserError("every epsilon must be above zero")
    first, _ = distinct_front(values)
    cells = np.floor(values[first] / steps)
    corner = ((values[first] / steps - cells) ** 2).sum(axis=1)
    order = np.lexsort((corner, *cells.T[::-1]))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (cells[order][1:] != cells[order][:-1]).any(axis=1)
    nearest = order[is_first]
    kept, _ = distinct_front(cells[nearest])
    return np.sort(first[nearest[kept]])


def hypervolume(values: Matrix, reference: Sequence[float]) -> float:
    """Return the volume between a set of points and the reference point; larger is better.

    A row that is not better than the reference in every column adds nothing.
    """
    if len(reference) != values.shape[1]:
        raise UserError(
            f"the reference point has {len(reference)} values for {values.shape[1]} objectives"
        )
    import moocore

    front = values[distinct_front(values)[0]]
    return float(moocore.hypervolume(front, ref=reference)) if len(front) else 0.0


def dominated_shares(*tables: Matrix) -> list[float]:
    """Return the share of the tables' common bounding box that each table's rows dominate."""
    together = np.concatenate(tables)
    low, high = together.min(axis=0), together.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return [hypervolume((t - low) / width, [1.0] * t.shape[1]) for t in tables]
