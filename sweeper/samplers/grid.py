"""The grid sampler: every point, in order, so that neighbouring points share preparation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sweeper.samplers import Results
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Span


@dataclass(frozen=True)
class Grid:
    """The whole space."""

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:  # noqa: ARG002 - a grid looks at no results
        """Yield one round: the range of all numbers."""
        yield [Span(0, len(space))]

    def size(self, space: DesignSpace) -> int:
        """Return the number of points."""
        return len(space)


SAMPLER = Grid
