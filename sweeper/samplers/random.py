"""The random sampler: points drawn uniformly, without repeats, that the constraints allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from sweeper.samplers import Results
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Index

BLOCK = 4096  # points sent together, in the order drawn and sorted inside: a fair sample
_RARE = 1 / 64  # share of allowed points below which points are drawn by their constraints
_PATIENCE = 1 << 24  # largest number of draws of a sample, or 256 per point if that is more


@dataclass(frozen=True)
class Random:
    """A uniform sample.

    Args:
        points: number of points; all allowed points if there are fewer.
        seed: seed of the draw.
    """

    points: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.points, self.seed)

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:  # noqa: ARG002 - the draw looks at no results
        """Yield one round of blocks."""
        yield in_blocks(self.draw(space))

    def size(self, space: DesignSpace) -> int:
        """Return the number of points asked for, at most the size of the space."""
        return min(self.points, len(space))

    def draw(self, space: DesignSpace) -> Index:
        """Return the numbers of the points, in the order drawn."""
        random = np.random.default_rng(self.seed)
        if len(space) <= 4 * self.points:
            return allowed(space, random.permutation(len(space)))[: self.points]
        if space.constraints and space.share < _RARE:
            return first_distinct(space, self.points, lambda n: space.drawn(random, n), 1 << 16)
        return first_distinct(space, self.points, lambda n: random.integers(len(space), size=n))


def check_options(points: int, seed: int = 0) -> None:
    """Raise `UserError` for an impossible number of points or seed."""
    if points < 1:
        raise UserError(f"sampler.points={points}: a sampler picks at least one point")
    if seed < 0:
        raise UserError(f"sampler.seed={seed}: a seed is not negative")


def in_blocks(index: Index) -> Iterator[Batch]:
    """Yield point numbers in blocks, each sorted."""
    for start in range(0, len(index), BLOCK):
        yield np.sort(index[start : start + BLOCK])


def allowed(space: DesignSpace, index: Index) -> Index:
    """Return the point numbers that the constraints allow, in order."""
    kept = space.kept(index)
    return index if kept is None else index[kept]


def first_distinct(
    space: DesignSpace, count: int, draw: Callable[[int], Index], step: int = 1024
) -> Index:
    """Return the first `count` distinct allowed numbers of a sequence of draws.

    Returns fewer when few are allowed: the number of draws is bounded.
    """
    found, step = np.empty(0, np.int64), max(2 * count, step)
    drawn, most = 0, max(min(len(space), _PATIENCE), 256 * count)
    while len(found) < count and drawn < most:
        more = allowed(space, np.asarray(draw(step), np.int64))
        drawn += step
        together = np.concatenate([found, more])
        _, first = np.unique(together, return_index=True)
        found = together[np.sort(first)]
    return found[:count]


SAMPLER = Random
