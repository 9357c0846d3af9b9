"""The bounds sampler: an exact front without all points, by branch and bound over boxes.

A simulator states lower bounds of its metrics over a box of designs. Boxes that a found design
dominates, or that cannot meet the condition, are discarded. Remaining boxes with non-dominated
bounds are cut; a box with one design is evaluated (best first; Land and Doig, "An automatic method
of solving discrete programming problems", 1960). The result is the front of the whole space; of
designs with equal objectives at least one is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simulators.core.contract import EstimatesCost, load_simulator
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from sweeper.query.fronts import Matrix, distinct_front, dominated, group_fronts
from sweeper.questions import Bounds
from sweeper.samplers import MEETS, Goal, Observations, RowTable, Search
from sweeper.samplers._boxes import Cuts, Partition
from sweeper.samplers._search_driver import scenario_numbers, with_value
from sweeper.samplers.random import allowed, check_options
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, Mask
from sweeper.space.sql import at_most

ALL = 1 << 62  # more points than a space has
_NEAR = 0.05  # boxes whose bounds are worse than non-dominated ones by this share are cut as well
_TINY = float(np.finfo(np.float64).tiny)  # added to bounds: bounds of zero are near each other
_CHEAP_POINT_S = 1e-4  # evaluation time up to which a design costs no more than a bound
_AT_ONCE = 200_000  # boxes bounded at a time, which limits memory
_PARTS, _CHEAP_PARTS = 8, 64  # parts that a box is cut into; more where designs are cheap
_CHEAP_DESIGNS = 20_000  # rough number of cheap designs evaluated per round


@dataclass(frozen=True)
class BranchAndBound:
    """A search that proves its front.

    Args:
        points: largest number of points; a search that reaches it has not proved its front.
        within: share by which an unknown design may be better than the front in every objective.
    """

    points: int = ALL
    within: float = 0.0

    def __post_init__(self) -> None:
        check_options(self.points)
        if not 0.0 <= self.within < 1.0:
            raise UserError(f"sampler.within={self.within:g}: write a share below 1, as in 0.01")

    def size(self, space: DesignSpace) -> int:
        """Return the number of points asked for, at most the size of the space."""
        return min(self.points, len(space))

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a new search.

        Raises:
            UserError: the simulator states no bounds, or no bound of an objective.
        """
        return BoundedSearch(partition_of(space, goal), goal, self.within)


def partition_of(space: DesignSpace, goal: Goal, parts: int = 0) -> Partition:
    """Return the boxes of a space; cut into many parts where designs are cheap, if not stated.

    Raises:
        UserError: the simulator states no bounds.
    """
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Bounds):
        raise UserError(
            f"sampler=bounds needs a simulator that states bounds, and '{space.simulator}' "
            "states none: use grid, or nsga2"
        )
    parts = parts or (_CHEAP_PARTS if _is_cheap(space) else _PARTS)
    return Partition(space, simulator, tuple(goal.given), parts)


@dataclass(frozen=True)
class Boxes(RowTable):
    """Boxes, one per row: the values from `low` to `high` of each factor that varies."""

    low: Ints
    high: Ints
    least: Matrix  # lower bounds, a column per objective
    group: Ints  # the scenario

    @property
    def is_single(self) -> Mask:
        """Whether each box holds one design."""
        single: Mask = (self.low == self.high).all(axis=1)
        return single


BoundsOf = Callable[[Index, Index], Mapping[str, Floats]]
"""Bounds of each metric over boxes, given the numbers of their first and last designs."""


class BoundedSearch:
    """The remaining boxes, and the front found so far.

    Args:
        partition: the boxes of the space.
        goal: the objectives, the condition and the scenarios.
        within: share by which an unknown design may be better than the front.
        bounds: computes bounds; the simulator in this process if not given.
        boxes: the first and last rows of the boxes to begin with; the initial ones if not given.
    """

    def __init__(
        self,
        partition: Partition,
        goal: Goal,
        within: float = 0.0,
        bounds: BoundsOf | None = None,
        boxes: tuple[Ints, Ints] | None = None,
    ) -> None:
        self._partition, self._space, self._goal = partition, partition.space, goal
        self._simulator, self._bounds_of = partition.simulator, bounds or self._bounds_here
        self._limits, self._left = at_most(goal.where or ""), 1.0 - within
        self._best: dict[int, Matrix] = {}
        self._cheap = _is_cheap(self._space)
        self._known, self._evaluated = np.empty(0, np.int64), False
        self._cut_ends: list[tuple[Ints, Ints]] = []
        low, high = partition.initial if boxes is None else boxes
        kept = self._allowed(low, high)
        low, high = low[kept], high[kept]
        # Bounds of the initial boxes are loose: where designs are cheap, only parts are bounded.
        later = np.asarray((low < high).any(axis=1) & (self._cheap and boxes is None), bool)
        later[:1] = False  # the first shows which metrics have bounds
        self._boxes = self._bounded(low[~later], high[~later])
        self._boxes = self._boxes.joined(self._unbounded(low[later], high[later]))

    @property
    def remaining(self) -> Boxes:
        """The boxes that no known design dominates."""
        return self._boxes

    @property
    def cuts(self) -> Cuts:
        """The boxes that were cut; all others are dominated, impossible or evaluated."""
        sides = len(self._partition.varied)
        ends = self._cut_ends or [(np.empty((0, sides), np.int64),) * 2]
        low, high = (np.concatenate(each) for each in zip(*ends, strict=True))
        return Cuts.of(self._partition, low, high)

    def ask(self) -> Index:
        """Return the designs of single boxes with non-dominated bounds.

        Where a design costs no more than a bound, the middle designs of boxes with non-dominated
        bounds and of a sample of the others are returned too: a good design discards many boxes.
        """
        while len(self._boxes.group):
            best, _ = group_fronts(self._boxes.least, self._boxes.group)
            promising = self._boxes.take(best)
            if self._cheap and self._evaluated:
                self._evaluated = False
                self._cut(promising)
                continue
            asked = np.empty(0, np.int64)
            if self._cheap or promising.is_single.all():
                chosen = best
                if self._cheap:
                    count = len(self._boxes.group)
                    chosen = np.union1d(best, np.arange(0, count, 1 + count // _CHEAP_DESIGNS))
                boxes = self._boxes.take(chosen)
                asked = self._partition.number((boxes.low + boxes.high) // 2)
                asked = np.setdiff1d(allowed(self._space, asked), self._known)
                self._known = np.union1d(self._known, asked)
                left = np.setdiff1d(np.arange(len(self._boxes.group)), chosen[boxes.is_single])
                self._boxes = self._boxes.take(left)
                self._evaluated = True
            if not self._cheap:
                self._cut(promising)
            if len(asked):
                return asked
        return np.empty(0, np.int64)

    def tell(self, observed: Observations) -> None:
        """Update the front, and discard the boxes that it dominates."""
        for group in np.unique(observed.group[observed.tier == MEETS]).tolist():
            losses = observed.losses[(observed.group == group) & (observed.tier == MEETS)]
            if group in self._best:
                losses = np.concatenate([self._best[group], losses])
            self._best[group] = losses[distinct_front(losses)[0]]
        self._boxes = self._boxes.take(self._not_dominated(self._boxes, self._best))

    def _cut(self, promising: Boxes) -> None:
        """Cut boxes with nearly non-dominated bounds; where designs are cheap, all boxes."""
        near: dict[int, Matrix] = {}
        if not self._cheap:
            for group in np.unique(promising.group).tolist():
                least = promising.least[promising.group == group]
                near[group] = least * (1.0 + _NEAR) + _TINY
        wide = self._not_dominated(self._boxes, near) & ~self._boxes.is_single
        if wide.any():
            boxes = self._boxes.take(wide)
            self._cut_ends.append((boxes.low, boxes.high))
            parts = self._bounded(*self._partition.cut(boxes.low, boxes.high))
            self._boxes = self._boxes.take(~wide).joined(parts)

    def _bounded(self, low: Ints, high: Ints) -> Boxes:
        found = [
            self._some_bounded(low[start : start + _AT_ONCE], high[start : start + _AT_ONCE])
            for start in range(0, max(len(low), 1), _AT_ONCE)
        ]
        return functools.reduce(Boxes.joined, found)

    def _some_bounded(self, low: Ints, high: Ints) -> Boxes:
        kept = self._allowed(low, high)
        low, high = low[kept], high[kept]
        if not len(low):
            return self._unbounded(low, high)
        first, last = self._partition.number(low), self._partition.number(high)
        found = self._bounds_of(first, last)
        if missing := [n for n, d in self._goal.objectives.items() if n not in found or d != "min"]:
            raise UserError(
                f"sampler=bounds: '{self._space.simulator}' states no bounds of "
                f"{', '.join(missing)}; it bounds from below {', '.join(found)}"
            )
        least = np.stack([found[name] for name in self._goal.objectives], axis=1)
        group = scenario_numbers(self._space, self._goal.given, first)
        boxes = Boxes(low, high, np.maximum(least, 0.0), group)
        feasible = np.isfinite(boxes.least).all(axis=1)
        for name, limit in self._limits.items():
            feasible &= found[name] <= limit if name in found else True
        return boxes.take(feasible & self._not_dominated(boxes, self._best))

    def _unbounded(self, low: Ints, high: Ints) -> Boxes:
        """Return boxes with bounds of zero."""
        group = scenario_numbers(self._space, self._goal.given, self._partition.number(low))
        return Boxes(low, high, np.zeros((len(low), len(self._goal.objectives))), group)

    def _allowed(self, low: Ints, high: Ints) -> Mask:
        """Return a mask of the boxes that the constraints do not exclude as a whole."""
        first, kept = self._partition.number(low), np.ones(len(low), bool)
        for rule in self._space.rules:
            roots = np.isin(self._partition.varied, rule.roots)
            known = (low[:, roots] == high[:, roots]).all(axis=1)
            kept[known] &= rule.look_up(self._space, first[known])
        return kept

    def _bounds_here(self, first: Index, last: Index) -> Mapping[str, Floats]:
        """Return the bounds of boxes, given by their first and last designs."""
        ends = (self._priced(self._space.batch(index)) for index in (first, last))
        return self._simulator.bounds(*ends)

    def _not_dominated(self, boxes: Boxes, best: Mapping[int, Matrix]) -> Mask:
        """Return a mask of the boxes that no member of the front of their scenario dominates."""
        kept = np.ones(len(boxes.group), bool)
        for group, members in best.items():
            mine = np.flatnonzero(boxes.group == group)
            # Raised by one bit, a bound that equals a design is dominated by it.
            kept[mine] = ~dominated(np.nextafter(boxes.least[mine], np.inf), members * self._left)
        return kept

    def _priced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return designs at the first of the prices asked for."""
        axes = self._goal.priced.axes if self._goal.priced else {}
        for name in getattr(self._simulator, "priced", ()):
            if name in axes:
                batch = with_value(self._space, batch, name, axes[name][0])
        return batch


def _is_cheap(space: DesignSpace) -> bool:
    """Return whether evaluating a design costs no more than a bound."""
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, EstimatesCost):
        return False
    return float(simulator.cost_hint_s(space.batch(np.zeros(1, np.int64)))[0]) < _CHEAP_POINT_S


SAMPLER = BranchAndBound
