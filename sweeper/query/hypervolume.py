"""The hypervolume of a front: the volume it dominates, up to a reference point.

Zitzler and Thiele, "Multiobjective optimization using evolutionary algorithms" (1998), computed by
moocore, which comes with the extra `search`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulators.core.errors import UserError
from sweeper.extras import load_extra
from sweeper.query.pareto_kernel import Matrix, distinct_front


def hypervolume(values: Matrix, reference: Sequence[float]) -> float:
    """Return the volume between a set of points and the reference point; the larger the better.

    All columns are to be minimised; a row that is not better than the reference everywhere adds
    nothing.

    Raises:
        UserError: moocore is not installed, or the reference has another number of values.
    """
    if len(reference) != values.shape[1]:
        raise UserError(
            f"the reference point has {len(reference)} values for {values.shape[1]} objectives"
        )
    moocore = load_extra("moocore", "a hypervolume")
    front = values[distinct_front(values)[0]]
    return float(moocore.hypervolume(front, ref=reference)) if len(front) else 0.0


def dominated_shares(*tables: Matrix) -> list[float]:
    """Return the share of the box around all tables together that the rows of each dominate."""
    together = np.concatenate(tables)
    low, high = together.min(axis=0), together.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return [hypervolume((t - low) / width, [1.0] * t.shape[1]) for t in tables]
