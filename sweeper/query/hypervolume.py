"""The hypervolume of a front: the volume it dominates, up to a reference point.

Zitzler and Thiele, "Multiobjective optimization using evolutionary algorithms" (1998). Beyond two
objectives each point adds what it dominates alone: its own box less the hypervolume of the others'
boxes inside it (While, Bradstreet and Barone, "A fast way of calculating exact hypervolumes",
2012).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulators.core.errors import UserError
from sweeper.query.pareto_kernel import Matrix, distinct_front


def hypervolume(values: Matrix, reference: Sequence[float]) -> float:
    """Return the volume between a set of points and the reference point; the larger the better.

    All columns are to be minimised; a row that is not better than the reference everywhere adds
    nothing.

    >>> hypervolume(np.array([[1.0, 3.0], [2.0, 1.0]]), [4.0, 4.0])
    7.0
    """
    bound = np.asarray(reference, np.float64)
    if bound.shape != values.shape[1:]:
        raise UserError(
            f"the reference point has {bound.size} values for {values.shape[1]} objectives"
        )
    inside = values[(values < bound).all(axis=1)]
    return _volume(inside[distinct_front(inside)[0]], bound) if len(inside) else 0.0


def dominated_shares(*tables: Matrix) -> list[float]:
    """Return the share of the box around all tables together that the rows of each dominate.

    >>> dominated_shares(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 0.5]]))
    [0.0, 0.5]
    """
    together = np.concatenate(tables)
    low, high = together.min(axis=0), together.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return [hypervolume((t - low) / width, [1.0] * t.shape[1]) for t in tables]


def _volume(front: Matrix, bound: Matrix) -> float:
    """Return the volume of a front of distinct points."""
    if front.shape[1] == 1:
        return float(bound[0] - front.min())
    if front.shape[1] == 2:
        ordered = front[np.argsort(front[:, 0])]
        widths = np.diff(np.append(ordered[:, 0], bound[0]))
        return float(widths @ (bound[1] - ordered[:, 1]))
    # The worst in the last objective first: the others then cut it in fewer objectives.
    ordered = front[np.argsort(-front[:, -1])]
    heights = bound[-1] - ordered[:, -1]
    total = 0.0
    for i, height in enumerate(heights):
        rest = ordered[i + 1 :, :-1]
        total += height * _alone(ordered[i, :-1], rest, bound[:-1])
    return total


def _alone(point: Matrix, others: Matrix, bound: Matrix) -> float:
    """Return the volume that a point dominates and none of the others does."""
    whole = float(np.prod(bound - point))
    if not len(others):
        return whole
    clipped = np.maximum(others, point)
    return whole - _volume(clipped[distinct_front(clipped)[0]], bound)
