"""Samplers that an axis of the space or a question asks for: two bisections and a refinement.

`Capacity` finds the largest value of one axis that meets a condition, for every other combination.
What meets a service-level objective at some load meets it at a lower one, up to noise, so the limit
is bisected over a ladder of values 2.5 % apart.

`MinReplicasSearch` finds the fewest replicas with which any design meets its requirement. A design
is a combination of all axes but the replica axis; each combination of the given axes (model, load,
gpu) has an answer. The sizes of all designs are bisected together: once one design meets the
requirement at a size, only smaller sizes of the others matter. An answer is proved when every
design has failed at its largest size below the answer. Bursts and routers can break monotonicity
slightly, so near misses are also tried with one and two replicas less, and the answer with one
more. A cheap model (`prefilter`) says where to begin and which designs are hopeless.

`Refined` evaluates all points at the first value of an axis, usually a fidelity, and the front of
these at the second value. The front is that of rows relabelled with the second value, so a space's
`where` may ask for the second value alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from sweeper.query.pareto import pareto_front
from sweeper.questions import CarriesLoad
from sweeper.samplers import Goal, Results
from sweeper.samplers._search_driver import answers_at
from sweeper.samplers.random import allowed, in_blocks
from sweeper.space.axes import is_capacity, refined_values
from sweeper.space.design_space import DesignSpace, checked
from sweeper.space.points import Batch, Index, Mask, Span
from sweeper.space.space_file import SpaceConfig
from sweeper.space.sql import names_in, parsed, shown


def at_first_value(space: DesignSpace, axis: str) -> tuple[Index, int]:
    """Return the numbers of all points at the first value of an axis, and the axis's stride."""
    [place] = [i for i, factor in enumerate(space.factors) if axis in factor.columns]
    step, values = math.prod(space.sizes[place + 1 :].tolist()), len(space.axes[axis])
    every = np.arange(space.size // values, dtype=np.int64)
    return every // step * (step * values) + every % step, step


def single_axis(asked: Sequence[str], space: DesignSpace, what: str) -> str | None:
    """Return the one axis of `asked`; None if there is none.

    Raises:
        UserError: there are two, or the axis is zipped with others.
    """
    if len(asked) > 1:
        raise UserError(f"only one axis can {what}, not {' and '.join(asked)}")
    if asked and any(asked[0] in f.columns and len(f.columns) > 1 for f in space.factors):
        raise UserError(f"axis '{asked[0]}' cannot {what}, because it is zipped with others")
    return asked[0] if asked else None


@dataclass(frozen=True)
class Capacity:
    """Bisects one axis of a space."""

    axis: str  # ascending values, such as a load
    slo: str  # an SQL condition over results, true where it is met

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield one round of probes per halving."""
        base, step = at_first_value(space, self.axis)
        base = allowed(space, base)
        passes = np.full(len(base), -1)
        fails = np.full(len(base), len(space.axes[self.axis]))
        while (undecided := np.flatnonzero(fails - passes > 1)).size:
            middle = (passes[undecided] + fails[undecided]) // 2
            probes = base[undecided] + middle * step
            yield in_blocks(probes)
            met, feasible = self._verdicts(space, results(), probes)
            passes[undecided[met]] = middle[met]
            fails[undecided[~met]] = middle[~met]
            # A design that is infeasible at one load is infeasible at every load.
            fails[undecided[~feasible]] = passes[undecided[~feasible]] + 1

    def size(self, space: DesignSpace) -> int:
        """Return the largest possible number of probes."""
        values = len(space.axes[self.axis])
        return space.size // values * math.ceil(math.log2(values + 1))

    def _verdicts(
        self, space: DesignSpace, results: pl.LazyFrame, probes: Index
    ) -> tuple[Mask, Mask]:
        """Return a mask of the probes that met the condition, and a mask of the feasible ones."""
        what = f"slo '{self.slo}'"
        columns = dict.fromkeys([*space.axes, *names_in(self.slo, what), "status"])
        rows = answers_at(space, results.select(list(columns)), probes)
        status = pl.col("status").cast(pl.String)
        met = parsed(self.slo, what) & (status == "ok")
        verdicts = rows.select(met=met, feasible=status != "infeasible").fill_null(value=False)
        return verdicts["met"].to_numpy(), verdicts["feasible"].to_numpy()


def capacity_search(written: SpaceConfig, space: DesignSpace) -> Capacity | None:
    """Return the bisection of the axis written as a capacity; None without such an axis.

    Raises:
        UserError: there are two such axes, no condition, or a constraint that names the axis.
    """
    asked = [name for name, values in written.axes.items() if is_capacity(values)]
    slo = checked(written.slo, space)
    axis = single_axis(asked, space, "ask for a capacity")
    if axis is None:
        if slo is not None:
            raise UserError(
                "`slo` is met by bisection: write an axis as capacity 0.1..64, or use `where`"
            )
        return None
    if slo is None:
        simulator = load_simulator(space.simulator)
        example = ""
        if isinstance(simulator, CarriesLoad):
            example = f", such as slo: {simulator.deadlines}"
        raise UserError(f"axis '{axis}' asks for a capacity, so the space needs an `slo:`{example}")
    for rule in space.rules:  # the bisection would end at a forbidden value
        texts = (rule.text, *rule.derived.values())
        if any(axis in names_in(text, rule.what) for text in texts):
            raise UserError(
                f"axis '{axis}' asks for a capacity, so no constraint can name it: "
                f"{shown(rule.text)}; write the range into it, as in capacity 0.1..64"
            )
    return Capacity(axis, slo)


_PER_ROUND = 24  # designs tried per round and answer, the most promising first
_NEAR_MISS = 1.1  # a design that misses by less than this factor is tried with fewer replicas ...
_FEWER = 2  # ... by at most this number
_PROMISING = 1.5  # designs that missed by less than this factor are tried before untried ones
_HOPELESS = 1.25  # predicted factor from which only the best design of an answer is tried
_EQUAL_SIZE = 48  # largest number of designs of the answer's size that are compared
_NO_PROBES = np.empty((0, 2), np.int64)


class Requirement(Protocol):
    """A condition on a design, measured by the factor by which the design misses it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `misses` needs."""

    def misses(self, rows: pl.DataFrame) -> Floats:
        """Return the factor by which each row misses the requirement; at most 1 where it is met."""

    def prefilter(self, batch: pa.RecordBatch) -> Floats:
        """Return a lower bound of the factor from a cheap model; 1 where it is unknown."""


@dataclass(frozen=True)
class MinReplicasSearch:
    """Bisects the replicas of all designs of an answer together.

    Args:
        axis: the number of replicas; its values ascend.
        devices: the derived column of the devices of all replicas.
        given: columns; each combination of their values has an answer.
        requirement: condition on a design.
    """

    axis: str
    devices: str
    given: tuple[str, ...]
    requirement: Requirement

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield rounds of points to evaluate until the smallest of each answer is proved."""
        state = self._initial_state(space)
        while len(probes := state.next_probes()):
            index = state.number(*probes.T)
            yield in_blocks(index)
            state.learn(probes, self._misses(space, results(), index))

    def size(self, space: DesignSpace) -> int:
        """Return the rough number of points that are picked: most designs fail once."""
        return space.size // len(space.axes[self.axis])

    def _initial_state(self, space: DesignSpace) -> BisectionState:
        """Return all designs, with the sizes that constraints and the prefilter leave."""
        sizes = np.array(space.axes[self.axis], np.float64)
        first, step = at_first_value(space, self.axis)
        allowed = np.zeros(len(first), np.int64)
        for more in 1 << np.arange(len(sizes).bit_length())[::-1]:
            tried = np.flatnonzero(allowed + more <= len(sizes))
            kept = space.kept(first[tried] + step * (allowed[tried] + more - 1))
            allowed[tried if kept is None else tried[kept]] += more
        first, allowed = first[allowed > 0], allowed[allowed > 0]
        devices = space.derive(first)[self.devices].to_numpy(zero_copy_only=False)
        given = space.points(first).select(self.given)
        answer = given.with_columns(__answer=pl.struct(self.given).rank("dense"))["__answer"]
        unit = devices.astype(np.float64) / sizes[0]
        state = BisectionState(
            first, step, unit, sizes, allowed, answer.to_numpy().astype(np.int64) - 1
        )
        self._prefilter(space, state)
        return state

    def _prefilter(self, space: DesignSpace, state: BisectionState) -> None:
        """Predict designs at their largest size, then half of that, and so on."""
        designs, place = np.arange(len(state.first)), state.end - 1
        while len(designs):
            index = state.number(designs, place)
            order = np.argsort(index)
            factors = np.empty(len(index))
            factors[order] = self.requirement.prefilter(space.batch(index[order]))
            state.predict(designs, place, factors)
            further = (factors <= _HOPELESS) & (place > 0)
            designs, place = designs[further], (place[further] + 1) // 2 - 1
        state.keep_nearest()

    def _misses(self, space: DesignSpace, results: pl.LazyFrame, index: Index) -> Floats:
        """Return the factor by which each point misses; infinity if it is infeasible."""
        needed = results.select(*space.axes, "status", *self.requirement.columns)
        rows = answers_at(space, needed, index)
        ok = (rows["status"].cast(pl.String) == "ok").fill_null(value=False)
        return np.where(ok, self.requirement.misses(rows), np.inf)


class BisectionState:
    """State of the bisection: a range of sizes per design; a size is a number of replicas.

    Args:
        first: number of the point of each design at the smallest size.
        step: distance of the numbers of neighbouring sizes.
        unit: devices of one replica of each design.
        sizes: the ascending sizes.
        end: number of sizes of each design that constraints allow: the smallest ones.
        answer: number of the answer of each design.
    """

    def __init__(
        self, first: Index, step: int, unit: Floats, sizes: Floats, end: Index, answer: Index
    ) -> None:
        self.first, self.step, self.unit, self.sizes = first, step, unit, sizes
        self.end, self.answer = end, answer
        self.start = np.zeros_like(first)  # the smallest size that is neither hopeless nor failed
        self.miss: list[dict[int, float]] = [{} for _ in range(len(first))]  # by place of the size
        self.least_miss = np.full(len(first), np.inf)
        self.least_predicted = np.full(len(first), np.inf)
        self.smallest = np.full(len(first), np.inf)  # devices of the smallest promising size
        answers = int(answer.max()) + 1 if len(answer) else 0
        self.best = np.full(answers, np.inf)  # fewest devices so far
        self._compared = np.zeros(answers, bool)
        self._hopeless = np.zeros_like(first)  # the number of sizes that are excluded

    def number(self, designs: Index, places: Index) -> Index:
        """Return the numbers of points."""
        return self.first[designs] + self.step * places

    def predict(self, designs: Index, places: Index, factors: Floats) -> None:
        """Record predicted factors; a hopeless size excludes itself and smaller sizes."""
        self.least_predicted[designs] = np.fmin(self.least_predicted[designs], factors)
        is_hopeless = factors > _HOPELESS
        self._hopeless[designs[is_hopeless]] = places[is_hopeless] + 1
        hopeful, at = designs[~is_hopeless], places[~is_hopeless]
        self.smallest[hopeful] = self.unit[hopeful] * self.sizes[at]

    def keep_nearest(self) -> None:
        """Keep the largest size of the best design of every answer without another size."""
        for answer in range(len(self.best)):
            mine = np.flatnonzero(self.answer == answer)
            if (self._hopeless[mine] == self.end[mine]).all():
                nearest = mine[np.argmin(self.least_predicted[mine])]
                self._hopeless[nearest] -= 1
                if np.isfinite(self.least_predicted[nearest]):
                    self.smallest[nearest] = self.unit[nearest] * self.sizes[self.end[nearest] - 1]
        self.start = self._hopeless.copy()

    def learn(self, probes: Index, factors: Floats) -> None:
        """Record the factors by which probes missed; an infeasible probe rules out its design."""
        for (design, place), factor in zip(probes.tolist(), factors.tolist(), strict=True):
            self.miss[design][place] = factor
            self.least_miss[design] = min(self.least_miss[design], factor)
            if factor <= 1.0:
                answer = self.answer[design]
                devices = self.unit[design] * self.sizes[place]
                self.best[answer] = min(self.best[answer], devices)
            elif factor == math.inf:
                self.miss[design] = dict.fromkeys(self.miss[design], math.inf)
                self.least_miss[design] = math.inf
                self.start[design] = self._hopeless[design] = self.end[design]
            else:
                self.start[design] = max(self.start[design], place + 1)

    def next_probes(self) -> Index:
        """Return the next probes of every answer, as pairs of a design and a column."""
        found = [_NO_PROBES]
        for answer in range(len(self.best)):
            steps = (self._bisection, self._near_misses, self._equal_sizes)
            found.append(next((p for p in (s(answer) for s in steps) if len(p)), _NO_PROBES))
        return np.concatenate(found)

    def _bisection(self, answer: int) -> Index:
        """Return the most promising designs at a size between the failed ones and the best."""
        end = np.minimum(self.end, np.searchsorted(self.sizes, self.best[answer] / self.unit))
        designs = np.flatnonzero((self.answer == answer) & (self.start < end))
        if not len(designs):
            return _NO_PROBES
        start, end, unit = self.start[designs], end[designs], self.unit[designs]
        low = (unit * self.sizes[start]).min()
        target = max(low, math.floor(math.sqrt(low * (unit * self.sizes[end - 1]).max())))
        place = np.minimum(np.searchsorted(self.sizes, target / unit, side="right"), end) - 1
        designs, place = designs[place >= start], place[place >= start]
        return np.column_stack((designs, place))[self._promising(designs)[:_PER_ROUND]]

    def _promising(self, designs: Index) -> Index:
        """Return an order of designs: near misses, untried designs by prediction, the rest."""
        miss = self.least_miss[designs]
        untried = np.array([not self.miss[design] for design in designs.tolist()], bool)
        rank = np.where(untried, 1, np.where(miss < _PROMISING, 0, 2))
        order: Index = np.lexsort((np.where(untried, self.smallest[designs], miss), rank))
        return order

    def _near_misses(self, answer: int) -> Index:
        near = np.flatnonzero((self.answer == answer) & (self.least_miss < _NEAR_MISS))
        found = {
            (design, place - less)
            for design in near.tolist()
            for place, factor in self.miss[design].items()
            if 1.0 < factor < _NEAR_MISS
            for less in range(1, _FEWER + 1)
            if self._is_open(design, place - less)
        }
        return np.array(sorted(found), np.int64).reshape(-1, 2)

    def _equal_sizes(self, answer: int) -> Index:
        """Return, once, designs of the best size, and the best designs with one more replica."""
        best = self.best[answer]
        if self._compared[answer] or best == np.inf:
            return _NO_PROBES
        self._compared[answer] = True
        place = np.minimum(np.searchsorted(self.sizes, best / self.unit), len(self.sizes) - 1)
        is_equal = (self.answer == answer) & (self.unit * self.sizes[place] == best)
        pairs = [(d, int(place[d])) for d in np.flatnonzero(is_equal).tolist()]
        same = np.array([pair for pair in pairs if self._is_open(*pair)], np.int64).reshape(-1, 2)
        met = [(d, p + 1) for d, p in pairs if self.miss[d].get(p, math.inf) <= 1.0]
        larger = [pair for pair in met if self._is_open(*pair)][:_EQUAL_SIZE]
        order = self._promising(same[:, 0])[:_EQUAL_SIZE]
        return np.concatenate([same[order], np.array(larger, np.int64).reshape(-1, 2)])

    def _is_open(self, design: int, place: int) -> bool:
        is_allowed = self._hopeless[design] <= place < self.end[design]
        return bool(is_allowed and place not in self.miss[design])


SHARE = 1e-3  # expected share of points on the front


@dataclass(frozen=True)
class Refined:
    """Evaluates the second value of an axis on the front of the first value."""

    axis: str
    goal: Goal

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield all points at the first value, then their front at the second value."""
        first, step = at_first_value(space, self.axis)
        yield [Span(0, step)] if 2 * step == len(space) else in_blocks(allowed(space, first))
        yield in_blocks(self._front(space, results()) + step)

    def size(self, space: DesignSpace) -> int:
        """Return the rough number of points that are picked."""
        return round(space.size * space.share * (0.5 + SHARE))

    def _front(self, space: DesignSpace, rows: pl.LazyFrame) -> Index:
        first, second = space.axes[self.axis]
        judged = rows.filter(pl.col(self.axis).cast(pl.String) == first)
        judged = judged.with_columns(pl.lit(second).alias(self.axis))
        goal = self.goal
        front = pareto_front(judged, goal.objectives, where=goal.where, per=goal.given)
        numbers = space.index_of(front.with_columns(pl.lit(first).alias(self.axis)))
        return np.sort(numbers)


def refined_search(written: SpaceConfig, space: DesignSpace, goal: Goal) -> Refined | None:
    """Return the sampler of an axis written as `first A then B`; None without such an axis.

    Raises:
        UserError: there are two such axes, or the axis is zipped with others.
    """
    asked = [name for name, values in written.axes.items() if refined_values(values)]
    axis = single_axis(asked, space, "have a first and a then")
    return None if axis is None else Refined(axis, goal)
