"""The bounds sampler: an exact front without all points, by branch and bound over boxes.

A simulator states lower bounds of its metrics over a box of designs. Boxes that a found design
dominates, or that cannot meet the condition, are discarded. Remaining boxes with non-dominated
bounds are cut; a box with one design is evaluated (best first; Land and Doig, "An automatic method
of solving discrete programming problems", 1960). The result is the front of the whole space; of
designs with equal objectives at least one is found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simulators.core.contract import Hints, load_simulator
from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix, distinct_front, dominated, group_fronts
from sweeper.questions import Bounds, Ignores
from sweeper.samplers import MEETS, Goal, Observations, RowTable, Search
from sweeper.samplers._search_driver import scenario_numbers, with_value
from sweeper.samplers.random import allowed, check_options
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, Mask, number_of
from sweeper.space.sql import at_most

ALL = 1 << 62  # more points than a space has
_MOST = 2_000_000  # largest number of boxes of the initial partition
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
    """

    points: int = ALL

    def __post_init__(self) -> None:
        check_options(self.points)

    def size(self, space: DesignSpace) -> int:
        """Return the number of points asked for, at most the size of the space."""
        return min(self.points, len(space))

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a new search.

        Raises:
            UserError: the simulator states no bounds, or no bound of an objective.
        """
        simulator = load_simulator(space.simulator)
        if not isinstance(simulator, Bounds):
            raise UserError(
                f"sampler=bounds needs a simulator that states bounds, and '{space.simulator}' "
                "states none: use grid, or nsga2"
            )
        return _Proof(space, goal, simulator)


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


class _Proof:
    """The remaining boxes, and the front found so far."""

    def __init__(self, space: DesignSpace, goal: Goal, simulator: Bounds) -> None:
        self._space, self._goal, self._simulator = space, goal, simulator
        self._limits = at_most(goal.where or "")
        self._varied = np.flatnonzero(space.sizes > 1)
        self._sizes = space.sizes[self._varied]
        self._best: dict[int, Matrix] = {}
        self._cheap = _is_cheap(space)
        self._parts = _CHEAP_PARTS if self._cheap else _PARTS
        varied = [space.factors[i] for i in self._varied]
        parts = [_parts_of(factor.columns, simulator.ranged, goal.given) for factor in varied]
        self._known, self._evaluated = np.empty(0, np.int64), False
        self._boxes = self._bounded(*self._without_ignored(*_combined(parts)))

    def _without_ignored(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Reduce boxes to a single value of axes without effect on metrics or constraints."""
        if not isinstance(self._simulator, Ignores):
            return low, high
        high, asked = high.copy(), {root for rule in self._space.rules for root in rule.roots}
        ignored = self._simulator.ignored(self._space.batch(self._number(low)))
        for side, factor in enumerate(self._varied.tolist()):
            name, *others = self._space.factors[factor].columns
            if name in ignored and not others and factor not in asked:
                high[:, side] = np.where(ignored[name], low[:, side], high[:, side])
        return low, high

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
                asked = self._number((boxes.low + boxes.high) // 2)
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
            parts = self._bounded(*_cut_boxes(self._boxes.take(wide), self._parts))
            self._boxes = self._boxes.take(~wide).joined(parts)

    def _number(self, codes: Ints) -> Index:
        return np.zeros(len(codes), np.int64) + number_of(codes.T, self._sizes)

    def _bounded(self, low: Ints, high: Ints) -> Boxes:
        found = [
            self._some_bounded(low[start : start + _AT_ONCE], high[start : start + _AT_ONCE])
            for start in range(0, max(len(low), 1), _AT_ONCE)
        ]
        return functools.reduce(Boxes.joined, found)

    def _some_bounded(self, low: Ints, high: Ints) -> Boxes:
        first, last = self._number(low), self._number(high)
        kept = np.ones(len(low), bool)
        for rule in self._space.rules:
            roots = np.isin(self._varied, rule.roots)
            known = (low[:, roots] == high[:, roots]).all(axis=1)
            kept[known] &= rule.look_up(self._space, first[known])
        low, high, first, last = low[kept], high[kept], first[kept], last[kept]
        found = self._simulator.bounds(*(self._priced(self._space.batch(n)) for n in (first, last)))
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

    def _not_dominated(self, boxes: Boxes, best: Mapping[int, Matrix]) -> Mask:
        """Return a mask of the boxes that no member of the front of their scenario dominates."""
        kept = np.ones(len(boxes.group), bool)
        for group, members in best.items():
            mine = np.flatnonzero(boxes.group == group)
            # Raised by one bit, a bound that equals a design is dominated by it.
            kept[mine] = ~dominated(np.nextafter(boxes.least[mine], np.inf), members)
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
    if not isinstance(simulator, Hints):
        return False
    return float(simulator.cost_hint_s(space.batch(np.zeros(1, np.int64)))[0]) < _CHEAP_POINT_S


def _parts_of(
    columns: Mapping[str, Sequence[object]], ranged: Sequence[str], given: Sequence[str]
) -> tuple[Ints, Ints]:
    """Return the first and last rows of the parts of a factor that a box may span.

    Within a part only columns that a box may span differ, and their values ascend.
    """
    rows = list(zip(*columns.values(), strict=True))
    free = [name in ranged and name not in given for name in columns]

    def is_continued(row: tuple[object, ...], after: tuple[object, ...]) -> bool:
        return all(
            a == b or (may and isinstance(a, int | float) and isinstance(b, int | float) and a < b)
            for a, b, may in zip(row, after, free, strict=True)
        )

    starts = [0] + [i for i in range(1, len(rows)) if not is_continued(rows[i - 1], rows[i])]
    return np.array(starts, np.int64), np.array([*starts[1:], len(rows)], np.int64) - 1


def _combined(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return the ends of a box for every combination of parts of the factors."""
    left = math.prod(len(starts) for starts, _ in parts)
    if left > _MOST:
        raise UserError(
            f"sampler=bounds would begin with {left:,} boxes, more than {_MOST:,}: give other "
            "axes fewer values than those that a box may span"
        )
    picked = np.unravel_index(np.arange(left), [len(starts) for starts, _ in parts] or [1])
    low = np.zeros((left, len(parts)), np.int64)
    high = low.copy()
    for side, ((starts, lasts), rows) in enumerate(zip(parts, picked, strict=False)):
        low[:, side], high[:, side] = starts[rows], lasts[rows]
    return low, high


def _cut_boxes(boxes: Boxes, count: int) -> tuple[Ints, Ints]:
    """Return the ends of the parts of boxes, each cut along its longest side."""
    width = boxes.high - boxes.low + 1
    rows, axis = np.arange(len(width)), width.argmax(axis=1)
    most = width[rows, axis]
    parts = np.minimum(most, count)
    each = np.repeat(rows, parts)
    part = np.arange(len(each)) - np.repeat(np.cumsum(parts) - parts, parts)
    low, high = boxes.low[each], boxes.high[each]
    start, side = boxes.low[rows, axis][each], axis[each]
    high[np.arange(len(each)), side] = start + most[each] * (part + 1) // parts[each] - 1
    low[np.arange(len(each)), side] = start + most[each] * part // parts[each]
    return low, high


SAMPLER = BranchAndBound
