"""What a form missed where it was looked at, and so misses elsewhere: a Gaussian process.

Misses go with trends that are known for all sizes, each by a factor that is unknown, and beyond
that are alike where sizes are. How far that reaches, how large it is and how much misses scatter is
chosen by predicting each of them from the others (Rasmussen and Williams, "Gaussian processes for
machine learning", 2006, sections 2.7 and 5.4.2). Where they tell nothing of each other, nothing is
said of any other size. Scatter has the tails of Student's distribution, by weights in turn (Lange,
Little and Taylor, "Robust statistical modeling using the t distribution", 1989): now and then a
library chooses a kernel that takes twice as long.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from lab.tables.rows import Floats
from simulators.core.jit import Ints

REACHES = (1.0, 2.0, 4.0, 8.0)
"""Octaves of all sizes together after which misses have little in common."""

SIZES = (0.05, 0.1, 0.2, 0.4)
"""Of misses that reach, in log seconds; none at all is tried, too."""

SCATTERS = (0.03, 0.06, 0.12, 0.24)
"""Of misses that are a size's own."""

FREEDOM = 2.0
"""Degrees of freedom of scatter's tails, chosen between NVIDIA's boards; 4 does as well there."""

ROUNDS = 3
"""Of weighing misses by how far each is off what the others say."""


def carried_over(octaves: Floats, trends: Floats, seen: Ints, missed: Floats) -> Floats:
    """Return what is missed at all sizes, in log seconds.

    Args:
        octaves: a row per size, as logarithms to the base of two.
        trends: a row per size, a column per trend: what it is worth if its factor is off by one
            standard deviation.
        seen: numbers of those that were looked at.
        missed: log seconds of each of these, less what was said.

    >>> octaves = np.array([[10.0], [11.0], [12.0], [30.0]])
    >>> seen, missed = np.array([0, 2]), np.array([0.2, 0.2])
    >>> carried_over(octaves, 0.0 * octaves, seen, missed).round(1).tolist()
    [0.2, 0.2, 0.2, 0.0]
    """
    together = trends @ trends[seen].T
    choices = [(1.0, 0.0, scatter) for scatter in SCATTERS]
    choices += list(product(REACHES, SIZES, SCATTERS))
    near = {reach: alike(octaves[seen], octaves[seen], reach) for reach in REACHES}
    weights = np.ones(missed.size)

    def inverse(choice: tuple[float, float, float]) -> Floats:
        reach, size, scatter = choice
        found = together[seen] + size**2 * near[reach] + np.diag(scatter**2 / weights)
        return np.asarray(np.linalg.inv(found), np.float64)

    def surprise(choice: tuple[float, float, float]) -> float:
        """Return how unlikely each miss is given the others, up to a constant."""
        off, precision = _left_out(inverse(choice), missed)
        tails = (FREEDOM + 1.0) * np.log1p(off**2 * precision / FREEDOM)
        return float(np.sum(tails - np.log(precision)))

    for _ in range(ROUNDS):
        best = min(choices, key=surprise)
        kept = inverse(best)
        off, precision = _left_out(kept, missed)
        weights = (FREEDOM + 1.0) / (FREEDOM + off**2 * precision)
    reach, size, _ = best
    reaching = size**2 * alike(octaves, octaves[seen], reach)
    return np.asarray((together + reaching) @ (kept @ missed), np.float64)


def alike(one: Floats, other: Floats, reach: float) -> Floats:
    """Return how alike each size of one list is to each of another, from 0 to 1."""
    squares = ((one[:, None] - other[None]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squares / (2.0 * reach**2)), np.float64)


def _left_out(inverse: Floats, missed: Floats) -> tuple[Floats, Floats]:
    """Return how far each miss is off what the others say, and one over the variance of that."""
    precision = np.diag(inverse)
    return (inverse @ missed) / precision, precision
