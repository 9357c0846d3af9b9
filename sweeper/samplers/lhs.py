"""The lhs sampler: a Latin hypercube, which samples every part of each axis equally often.

McKay, Beckman and Conover, "A comparison of three methods for selecting values of input variables"
(1979). Forbidden and repeated points are replaced from further hypercubes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sweeper.samplers.random import Random, allowed, first_distinct
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index


@dataclass(frozen=True)
class Lhs(Random):
    """A Latin hypercube.

    Args:
        points: how many.
        seed: of the draw.
    """

    points: int = 1000

    def draw(self, space: DesignSpace) -> Index:
        """Return the numbers of the points, in the order drawn."""
        return spread_evenly(space, np.random.default_rng(self.seed), self.points)


def spread_evenly(space: DesignSpace, random: np.random.Generator, points: int) -> Index:
    """Return numbers of so many allowed points of a space, spread over each of its axes."""
    if points >= len(space):
        return allowed(space, random.permutation(len(space)))

    def cube(count: int) -> Index:
        numbers = np.zeros(count, np.int64)
        for factor in space.factors:
            # Thousands of points at a time, each of so many parts of the range once.
            part = random.permutation(count) + random.random(count)
            code = np.minimum((part * len(factor) / count).astype(np.int64), len(factor) - 1)
            numbers = numbers * len(factor) + code
        return numbers

    first = np.unique(allowed(space, cube(points)))
    if len(first) == points or not space.constraints:
        rest = first_distinct(space, points, cube)
        return np.concatenate([first, rest[~np.isin(rest, first)]])[:points]
    rest = first_distinct(space, points, lambda n: space.drawn(random, n))
    return np.concatenate([first, rest[~np.isin(rest, first)]])[:points]


SAMPLER = Lhs
