"""What a form missed where it was looked at, and so misses nearby: a Gaussian process of zero mean.

How far misses reach, how large they are and how much they scatter is chosen by predicting each of
them from the others (Rasmussen and Williams, "Gaussian processes for machine learning", 2006,
section 5.4.2). Where they tell nothing of each other, nothing is said of any other size.
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


def carried_over(octaves: Floats, seen: Ints, missed: Floats) -> Floats:
    """Return what is missed at all sizes, in log seconds.

    Args:
        octaves: a row per size, as logarithms to the base of two.
        seen: numbers of those that were looked at.
        missed: log seconds of each of these, less what was said.

    >>> octaves = np.array([[10.0], [11.0], [12.0], [30.0]])
    >>> carried_over(octaves, np.array([0, 2]), np.array([0.2, 0.2])).round(1).tolist()
    [0.2, 0.2, 0.2, 0.0]
    """
    apart = _squares(octaves, octaves[seen])
    near = apart[seen]
    own = np.eye(missed.size)
    choices = [(1.0, 0.0, scatter) for scatter in SCATTERS]
    choices += list(product(REACHES, SIZES, SCATTERS))

    def covariance(reach: float, size: float) -> Floats:
        return np.asarray(size**2 * np.exp(-near / (2.0 * reach**2)), np.float64)

    def likelihood(choice: tuple[float, float, float]) -> float:
        """Return how likely each miss is given the others, up to a constant."""
        reach, size, scatter = choice
        inverse = np.linalg.inv(covariance(reach, size) + scatter**2 * own)
        precision = np.diag(inverse)
        return 0.5 * float(np.sum(np.log(precision) - (inverse @ missed) ** 2 / precision))

    reach, size, scatter = max(choices, key=likelihood)
    weights = np.linalg.solve(covariance(reach, size) + scatter**2 * own, missed)
    return np.asarray(size**2 * np.exp(-apart / (2.0 * reach**2)) @ weights, np.float64)


def _squares(one: Floats, other: Floats) -> Floats:
    return np.asarray(((one[:, None] - other[None]) ** 2).sum(axis=-1), np.float64)
