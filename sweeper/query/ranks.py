"""Dominance ranks, crowding distances and epsilon fronts of designs.

Deb, Pratap, Agarwal and Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II"
(2002), for ranks and crowding; Laumanns, Thiele, Deb and Zitzler, "Combining convergence and
diversity in evolutionary multiobjective optimization" (2002), for epsilon dominance. All columns
are to be minimised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.query.pareto_kernel import Mask, Matrix, distinct_front, dominated

_SAMPLE = 10_000
"""Rows whose layers are found first, to put aside most of a larger table."""


def rank_layers(values: Matrix, layers: int | None = None) -> Ints:
    """Return the layer of each row: 1 on the front, 2 on the front of what is left, and so on.

    So many `layers` are peeled, or all; rows behind the last one, and rows with NaN, have layer 0.

    >>> rank_layers(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [3.0, 3.0]])).tolist()
    [1, 1, 2, 3]
    """
    ranks = np.zeros(len(values), np.int64)
    out = np.isnan(values).any(axis=1)
    if layers is not None and len(values) > _SAMPLE:
        out |= _far_behind(values, layers)
    left = np.flatnonzero(~out)
    layer = 0
    while len(left) and (layers is None or layer < layers):
        layer += 1
        rows = values[left]
        first, ties = distinct_front(rows)
        on_it = np.zeros(len(left), bool)
        on_it[first] = True
        if ties.sum() > len(first):
            on_it = _equal_to(rows, rows[first])
        ranks[left[on_it]] = layer
        left = left[~on_it]
    return ranks


def _far_behind(rows: Matrix, layers: int) -> Mask:
    """Return which rows are certainly behind the last layer wanted.

    What a design of layer L of any sample dominates has L designs of a chain before it.
    """
    sample = rows[:: len(rows) // _SAMPLE + 1]
    last = sample[rank_layers(sample, layers) == layers]
    return dominated(rows, last) if len(last) else np.zeros(len(rows), bool)


def crowding_distance(front: Matrix) -> Matrix:
    """Return how far apart the neighbours of each front member are, summed over the objectives.

    Each objective is scaled to its range on the front; the ends of any objective are infinitely
    far from the others.

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
    """Return the rows of a front thinned so that no two are nearly alike.

    The objectives are cut into cells; only cells no other cell dominates are kept, and of each the
    row nearest to its best corner. Every design is then matched by a kept one to within epsilon,
    the size of a cell in each objective. For relative steps pass logarithms.

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
    fresh = np.ones(len(order), bool)
    fresh[1:] = (cells[order][1:] != cells[order][:-1]).any(axis=1)
    nearest = order[fresh]
    kept, _ = distinct_front(cells[nearest])
    return np.sort(first[nearest[kept]])


def _equal_to(rows: Matrix, members: Matrix) -> Mask:
    """Return which rows equal one of the members."""
    both = np.ascontiguousarray(np.concatenate([members, rows])) + 0.0  # one zero, not two
    words = both.view(np.dtype((np.void, both.dtype.itemsize * both.shape[1]))).ravel()
    return np.isin(words[len(members) :], words[: len(members)])
