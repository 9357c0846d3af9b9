"""The lhs sampler: a Latin hypercube, which samples every part of each axis equally often.

McKay, Beckman and Conover, "A comparison of three methods for selecting values of input variables"
(1979). Forbidden and repeated points are replaced from further hypercubes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sweeper.samplers.random import Random, allowed, first_distinct
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, number_of


@dataclass(frozen=True)
class Lhs(Random):
    """A Latin hypercube.

    Args:
        points: number of points.
        seed: seed of the draw.
    """

    points: int = 1000

    def draw(self, space: DesignSpace) -> Index:
        """Return the numbers of the points, in the order drawn."""
        return spread_evenly(space, np.random.default_rng(self.seed), self.points)


def spread_evenly(space: DesignSpace, random: np.random.Generator, points: int) -> Index:
    """Return the numbers of `points` allowed points, spread evenly over each axis."""
    if points >= len(space):
        return allowed(space, random.permutation(len(space)))

    def cube(count: int) -> Index:
        """Return the points of one hypercube: each of `count` parts of every axis once."""
        codes = []
        for size in space.sizes.tolist():
            part = random.permutation(count) + random.random(count)
            codes.append(np.minimum((part * size / count).astype(np.int64), size - 1))
        return number_of(codes, space.sizes)

    first = np.unique(allowed(space, cube(points)))
    is_direct = len(first) == points or not space.constraints
    draw = cube if is_direct else lambda n: space.drawn(random, n)
    rest = first_distinct(space, points, draw)
    return np.concatenate([first, rest[~np.isin(rest, first)]])[:points]


SAMPLER = Lhs
