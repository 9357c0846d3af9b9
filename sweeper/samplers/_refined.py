"""Evaluates all points at the first value of an axis, and the front of these at the second value.

Such an axis is usually a fidelity; both fidelities must report the objectives. The front is that of
rows relabelled with the second value, so a space's `where` may ask for the second value alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from sweeper.query.pareto import pareto_front
from sweeper.samplers import Goal, Results
from sweeper.samplers._search_driver import at_first_value, single_axis
from sweeper.samplers.random import allowed, in_blocks
from sweeper.space.axes import refined_values
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Index, Span
from sweeper.space.space_file import SpaceConfig

SHARE = 1e-3
"""Expected share of points on the front."""


@dataclass(frozen=True)
class Refined:
    """Evaluates an axis's second value where the front of the first one is."""

    axis: str
    goal: Goal

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield all points at the first value, then the front of these at the second."""
        first, step = at_first_value(space, self.axis)
        yield [Span(0, step)] if 2 * step == len(space) else in_blocks(allowed(space, first))
        yield in_blocks(self._front(space, results()) + step)

    def size(self, space: DesignSpace) -> int:
        """Return roughly how many points will be picked."""
        return round(space.size * space.share * (0.5 + SHARE))

    def _front(self, space: DesignSpace, rows: pl.LazyFrame) -> Index:
        """Return the sorted numbers of the points on the front of the first value."""
        first, second = space.axes[self.axis]
        judged = rows.filter(pl.col(self.axis).cast(pl.String) == first)
        judged = judged.with_columns(pl.lit(second).alias(self.axis))
        goal = self.goal
        front = pareto_front(judged, goal.objectives, where=goal.where, per=goal.given)
        numbers = space.index_of(front.with_columns(pl.lit(first).alias(self.axis)))
        return np.sort(numbers)


def refined_search(written: SpaceConfig, space: DesignSpace, goal: Goal) -> Refined | None:
    """Return the sampler that an axis asks for whose second value is for the front of its first.

    Raises:
        UserError: two axes ask, or one that moves with others.
    """
    asked = [name for name, values in written.axes.items() if refined_values(values)]
    axis = single_axis(asked, space, "have a first and a then")
    return None if axis is None else Refined(axis, goal)
