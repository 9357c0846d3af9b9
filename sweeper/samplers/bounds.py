"""The bounds sampler: an exact front without all points, by branch and bound over boxes.

A simulator says what no design of a box does better than. Boxes that a found design equals or beats
in everything, or that cannot meet the condition, are discarded. Of the others the most promising
are halved, or simulated where one design is left: those whose bounds no other box's bounds
dominate. These have to be looked at in any order, so that none is simulated in vain (best first;
Land and Doig, "An automatic method of solving discrete programming problems", 1960). What is left
in the end is the front of the whole space: of equal designs, one at least.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.core.contract import Hints, load_simulator
from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.query.pareto_kernel import Matrix, distinct_front, dominated, group_fronts
from sweeper.questions import Bounds, Ignores
from sweeper.samplers import MEETS, Goal, Observations, Search
from sweeper.samplers._search_driver import number_of, scenario_numbers, sizes_of
from sweeper.samplers.random import allowed
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index, Mask
from sweeper.space.sql import at_most

ALL = 1 << 62
"""More points than a space has."""
_MOST = 2_000_000
"""Boxes that a search begins with at most."""
_NEAR = 0.05
"""Boxes whose bounds are worse by no more than this part are cut with the most promising ones."""
_TINY = float(np.finfo(np.float64).tiny)
"""More than nothing, by which boxes are near of which nothing is known."""
_CHEAP_S = 1e-4
"""Time of a look at a design that is no more than that of a bound."""
_AT_ONCE = 200_000
"""Boxes bounded at a time: each has all columns of a design twice."""
_CHILDREN, _CHEAP_CHILDREN = 8, 64
"""Boxes that one is cut into at a time: bounds of many are cheaper than of few, twice; more where
looks are cheap."""
_LOOKS = 20_000
"""Cheap looks at a time, about."""


@dataclass(frozen=True)
class BranchAndBound:
    """A search that proves its front.

    Args:
        points: simulated at most; stopped by it, the front is not proved.
        across: nothing: each scenario has its front.
    """

    points: int = ALL
    across: str = ""

    def __post_init__(self) -> None:
        if self.points < 1:
            raise UserError(f"sampler.points={self.points}: a search looks at one point at least")
        if self.across:
            raise UserError(
                "sampler=bounds proves a front for each scenario, not one across them: "
                "sampler.across is for nsga2, bayes and halving"
            )

    def size(self, space: DesignSpace) -> int:
        """Return the number of points asked for, at most the space."""
        return min(self.points, len(space))

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search that has looked at nothing.

        Raises:
            UserError: the simulator states no bounds, or none of an objective.
        """
        simulator = load_simulator(space.simulator)
        if not isinstance(simulator, Bounds):
            raise UserError(
                f"sampler=bounds needs a simulator that states bounds, and '{space.simulator}' "
                "states none: use grid, or nsga2"
            )
        return _Proof(space, goal, simulator)


@dataclass(frozen=True)
class Boxes:
    """Parts of a space: of each factor that varies the rows from `low` to `high`, a box a row."""

    low: Ints
    high: Ints
    least: Matrix  # what no design is below, a column per objective
    group: Ints  # the scenario

    def take(self, which: Ints | Mask) -> Boxes:
        """Return some of them."""
        return Boxes(*(column[which] for column in vars(self).values()))

    def joined(self, other: Boxes) -> Boxes:
        """Return these and others."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Boxes(*(np.concatenate(two) for two in both))

    @property
    def single(self) -> Mask:
        """Which hold one design."""
        alone: Mask = (self.low == self.high).all(axis=1)
        return alone


class _Proof:
    """The boxes that are left, and the best designs found."""

    def __init__(self, space: DesignSpace, goal: Goal, simulator: Bounds) -> None:
        self._space, self._goal, self._simulator = space, goal, simulator
        self._limits = at_most(goal.where or "")
        self._varied = np.flatnonzero(sizes_of(space) > 1)
        self._sizes = sizes_of(space)[self._varied]
        self._best: dict[int, Matrix] = {}
        self._cheap = _is_cheap(space)
        self._children = _CHEAP_CHILDREN if self._cheap else _CHILDREN
        varied = [space.factors[i] for i in self._varied]
        runs = [_runs(factor.columns, simulator.ranged, goal.given) for factor in varied]
        self._known, self._looked = np.empty(0, np.int64), False
        self._boxes = self._bounded(*self._without_ignored(*_combined(runs)))

    def _without_ignored(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Return the ends of boxes with one value of what changes nothing, and no rule asks."""
        if not isinstance(self._simulator, Ignores):
            return low, high
        high, asked = high.copy(), {root for rule in self._space.rules for root in rule.roots}
        ignored = self._simulator.ignored(self._space.batch(number_of(low, self._sizes)))
        for side, factor in enumerate(self._varied.tolist()):
            name, *others = self._space.factors[factor].columns
            if name in ignored and not others and factor not in asked:
                high[:, side] = np.where(ignored[name], low[:, side], high[:, side])
        return low, high

    def ask(self) -> Index:
        """Return the designs that are as good, by their bounds, as any box that is left.

        Where a look costs no more than a bound, also the middle one of those and of other boxes,
        evenly picked: what is found early spares bounds.
        """
        while len(self._boxes.group):
            best, _ = group_fronts(self._boxes.least, self._boxes.group)
            promising, alone = self._boxes.take(best), self._boxes.single[best]
            if self._cheap and self._looked:
                self._looked = False
                self._cut(promising)
                continue
            asked = np.empty(0, np.int64)
            if self._cheap or alone.all():
                looked = self._boxes.take(self._and_others(best))
                asked = number_of((looked.low + looked.high) // 2, self._sizes)
                asked = np.setdiff1d(allowed(self._space, asked), self._known)
                self._known = np.union1d(self._known, asked)
                self._boxes = self._without(self._and_others(best)[looked.single])
                self._looked = True
            if not self._cheap:
                self._cut(promising)
            if len(asked):
                return asked
        return np.empty(0, np.int64)

    def _and_others(self, best: Ints) -> Ints:
        """Return the promising boxes and, where looks are cheap, others evenly picked."""
        if not self._cheap:
            return best
        count = len(self._boxes.group)
        return np.union1d(best, np.arange(0, count, 1 + count // _LOOKS))

    def _without(self, which: Ints) -> Boxes:
        """Return all boxes but some."""
        return self._boxes.take(np.setdiff1d(np.arange(len(self._boxes.group)), which))

    def tell(self, observed: Observations) -> None:
        """Discard what the best designs equal or beat."""
        for group in np.unique(observed.group[observed.tier == MEETS]).tolist():
            losses = observed.losses[(observed.group == group) & (observed.tier == MEETS)]
            if group in self._best:
                losses = np.concatenate([self._best[group], losses])
            self._best[group] = losses[distinct_front(losses)[0]]
        self._boxes = self._boxes.take(self._hopeful(self._boxes, self._best))

    def _cut(self, promising: Boxes) -> None:
        """Cut the boxes that are nearly as good as the promising ones, but for single designs.

        Where looks cost no more than bounds, all: those of many boxes cost little more than of few.
        """
        near = {} if self._cheap else self._near(promising, _NEAR)
        wide = self._hopeful(self._boxes, near) & ~self._boxes.single
        if wide.any():
            parts = self._bounded(*_parts(self._boxes.take(wide), self._children))
            self._boxes = self._boxes.take(~wide).joined(parts)

    def _near(self, promising: Boxes, part: float) -> dict[int, Matrix]:
        """Return what is worse by so much than the bounds of boxes, by scenario."""
        return {
            group: promising.least[promising.group == group] * (1.0 + part) + _TINY
            for group in np.unique(promising.group).tolist()
        }

    def _bounded(self, low: Ints, high: Ints) -> Boxes:
        """Return the boxes between some ends that may hold a design of the front."""
        found = [
            self._some_bounded(low[start : start + _AT_ONCE], high[start : start + _AT_ONCE])
            for start in range(0, max(len(low), 1), _AT_ONCE)
        ]
        return functools.reduce(Boxes.joined, found)

    def _some_bounded(self, low: Ints, high: Ints) -> Boxes:
        first, last = number_of(low, self._sizes), number_of(high, self._sizes)
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
        group = scenario_numbers(self._space, self._goal.given, first)
        none = np.zeros((len(low), len(self._goal.objectives)))
        return self._raised(Boxes(low, high, none, group), found)

    def _raised(self, boxes: Boxes, found: Mapping[str, Any]) -> Boxes:
        """Return what is left of boxes of which metrics are known not to be below some numbers."""
        least = np.stack([found[name] for name in self._goal.objectives], axis=1)
        boxes = replace(boxes, least=np.maximum(boxes.least, least))
        possible = np.isfinite(boxes.least).all(axis=1)
        for name, limit in self._limits.items():
            possible &= found[name] <= limit if name in found else True
        return boxes.take(possible & self._hopeful(boxes, self._best))

    def _hopeful(self, boxes: Boxes, best: Mapping[int, Matrix]) -> Mask:
        """Return which boxes none of the best of their scenario equals or beats in everything."""
        hope = np.ones(len(boxes.group), bool)
        for group, members in best.items():
            mine = np.flatnonzero(boxes.group == group)
            # A little above, a bound that a design equals is one that it dominates.
            hope[mine] = ~dominated(np.nextafter(boxes.least[mine], np.inf), members)
        return hope

    def _priced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return designs in the first of the prices that are asked for."""
        axes = self._goal.priced.axes if self._goal.priced else {}
        for name in getattr(self._simulator, "priced", ()):
            if name in axes:
                place, value = batch.schema.get_field_index(name), axes[name][0]
                column = pa.array([value] * batch.num_rows, self._space.schema.field(name).type)
                batch = batch.set_column(place, name, column.dictionary_encode())
        return batch


def _is_cheap(space: DesignSpace) -> bool:
    """Return whether a look at a design costs no more than a bound."""
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Hints):
        return False
    return float(simulator.cost_hint_s(space.batch(np.zeros(1, np.int64)))[0]) < _CHEAP_S


def _runs(
    columns: Mapping[str, Sequence[object]], ranged: Sequence[str], given: Sequence[str]
) -> tuple[Ints, Ints]:
    """Return first and last of the rows of a factor that may be one side of a box.

    Within them only columns differ that a box may span, and rise.
    """
    rows = list(zip(*columns.values(), strict=True))
    free = [name in ranged and name not in given for name in columns]

    def goes_on(row: tuple[object, ...], after: tuple[object, ...]) -> bool:
        return all(
            a == b or (may and isinstance(a, int | float) and isinstance(b, int | float) and a < b)
            for a, b, may in zip(row, after, free, strict=True)
        )

    starts = [0] + [i for i in range(1, len(rows)) if not goes_on(rows[i - 1], rows[i])]
    return np.array(starts, np.int64), np.array([*starts[1:], len(rows)], np.int64) - 1


def _combined(runs: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return the ends of the boxes of every combination of the factors' runs."""
    left = math.prod(len(starts) for starts, _ in runs)
    if left > _MOST:
        raise UserError(
            f"sampler=bounds would begin with {left:,} boxes, more than {_MOST:,}: give other "
            "axes fewer values than those that a box may span"
        )
    number, ends = np.arange(left), [(np.zeros((left, 0), np.int64),) * 2]
    for starts, lasts in runs:
        left //= len(starts)
        picked = number // left % len(starts)
        ends.append((starts[picked, np.newaxis], lasts[picked, np.newaxis]))
    low, high = zip(*ends, strict=True)
    return np.concatenate(low, axis=1), np.concatenate(high, axis=1)


def _parts(boxes: Boxes, children: int) -> tuple[Ints, Ints]:
    """Return the ends of the parts of boxes, each cut along the factor of which it has most."""
    width = boxes.high - boxes.low + 1
    rows, axis = np.arange(len(width)), width.argmax(axis=1)
    most = width[rows, axis]
    parts = np.minimum(most, children)
    each = np.repeat(rows, parts)
    part = np.arange(len(each)) - np.repeat(np.cumsum(parts) - parts, parts)
    low, high = boxes.low[each], boxes.high[each]
    start, side = boxes.low[rows, axis][each], axis[each]
    high[np.arange(len(each)), side] = start + most[each] * (part + 1) // parts[each] - 1
    low[np.arange(len(each)), side] = start + most[each] * part // parts[each]
    return low, high


SAMPLER = BranchAndBound
