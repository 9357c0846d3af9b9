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
from sweeper.query.pareto_kernel import Matrix, distinct_front, dominated


def rank_layers(values: Matrix, layers: int | None = None) -> Ints:
    """Return the layer of each row: 1 on the front, 2 on the front of what is left, and so on.

    Rows behind the last of `layers` layers (default: all), and rows with NaN, have layer 0.

    >>> rank_layers(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [3.0, 3.0]])).tolist()
    [1, 1, 2, 3]
    """
    ranks = np.zeros(len(values), np.int64)
    left = np.flatnonzero(~np.isnan(values).any(axis=1))
    layer = 0
    while len(left) and (layers is None or layer < layers):
        layer += 1
        rows = values[left]
        first, ties = distinct_front(rows)
        if ties.sum() > len(first):  # rows equal to a member are on the front with it
            on_front = ~dominated(rows, rows[first])
        else:
            on_front = np.zeros(len(left), bool)
            on_front[first] = True
        ranks[left[on_front]] = layer
        left = left[~on_front]
    return ranks


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
