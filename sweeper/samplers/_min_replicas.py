"""The fewest replicas with which any design meets its requirement.

A design is a combination of all axes but the replica axis; each combination of the given axes
(model, load, gpu) has an answer. The constraints leave each design an interval of sizes.

Designs with default options (the first value of each option axis) come first, those with the
fewest devices in a replica before larger ones, which are considered only if they can be smaller
than the answer. The most promising designs by a cheap model (`prefilter`) are tried at a predicted
size, then bisected together; all others are tried once, at their largest size below the answer.
Then single options are changed in designs that miss by little, at sizes below the answer, and
options that helped are combined. An answer is proved when every design has failed at its largest
size below the answer. Bursts and routers can break monotonicity slightly, so near misses are also
tried with one and two replicas less, and the answer with one more.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.jit import Floats, Ints
from sweeper.query import screening
from sweeper.samplers import Results, Round
from sweeper.samplers._axis_searches import at_first_value
from sweeper.samplers._search_driver import answers_at
from sweeper.samplers.random import in_blocks
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Index, Mask

_PER_ROUND = 24  # designs tried per round and answer, the most promising first
_LEADERS = 8  # designs with default options that are bisected from the start
_NEAR_MISS = 1.1  # a design that misses by less than this factor is tried with fewer replicas ...
_FEWER = 2  # ... by at most this number
_PROMISING = 1.5  # designs that missed by less than this factor are tried before untried ones
_STEEPEST = 2.0  # ratio of two predictions between which interpolation is accurate
_HOPELESS = 1.25  # predicted factor from which only the best design of an answer is tried
_TUNABLE = 2.0  # options are changed in designs that miss by less than this factor ...
_TUNABLE_NEAREST = 2.5  # ... and while none meets, in the nearest design below this factor
_HARMFUL = 1.05  # options that raise the miss by more than this factor are not combined
_AMPLE = 0.5  # a design that needs less than this share of its deadlines needs no comparison
_EQUAL_SIZE = 48  # largest number of designs of the answer's size that are compared
_GROWTH = 1.2  # factor of the devices where promising designs miss and none meets
_NO_PROBES = np.empty((0, 2), np.int64)
_NO_NUMBERS = np.empty(0, np.int64)
_FOREKNOWN = 1.3  # typical ratio of a simulated miss to the predicted lower bound
_NEVER = 1e9  # predicted factor of designs that cannot be built
_FORECAST_S = 1.0  # least time between two forecasts of the points to come
_FORECAST_ROUNDS = 200  # most rounds of a forecast


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
class Screened:
    """Default designs smaller than an answer that the prefilter excluded from simulation.

    `probability` is an upper bound (the sum over designs) of the probability that one of them would
    meet the requirement; None if too few simulated designs tell the error of the prefilter.
    """

    designs: int
    probability: float | None


@dataclass(frozen=True)
class MinReplicasSearch:
    """Searches the fewest replicas over all designs of an answer together.

    Args:
        axis: the number of replicas; its values ascend.
        devices: the derived column of the devices of all replicas.
        given: columns; each combination of their values has an answer.
        requirement: condition on a design.
        options: axes whose first value is the default and whose other values matter little.
        contrast: axis; designs where it is 0 and designs where it is not have separate answers.
        screened: of each answer; written at the end of the search.
    """

    axis: str
    devices: str
    given: tuple[str, ...]
    requirement: Requirement
    options: tuple[str, ...] = ()
    contrast: str = ""
    screened: list[Screened] = field(default_factory=list, compare=False, repr=False)

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield rounds of points to evaluate until the smallest of each answer is proved."""
        state, later, forecast_s = self._initial_state(space), 0, -math.inf
        while len(probes := self._next_probes(space, state)):
            index = state.number(*probes.T)
            later = max(later - len(probes), 0)
            if time.monotonic() - forecast_s > _FORECAST_S:
                later, forecast_s = state.forecast() - len(probes), time.monotonic()
            yield Round(list(in_blocks(index)), max(later, 0))
            state.learn(probes, self._misses(space, results(), index))
        self.screened[:] = [state.screened(answer) for answer in range(len(state.best))]

    def _next_probes(self, space: DesignSpace, state: SearchState) -> Index:
        """Return the next probes; answers that have none consider larger designs first."""
        while len(designs := state.to_screen()):
            self._prefilter(space, state, designs)
        return state.next_probes()

    def size(self, space: DesignSpace) -> int:
        """Return the rough number of points that are picked: most designs fail once."""
        options = math.prod(len(dict.fromkeys(space.axes[name])) for name in self.options)
        return max(1, space.size // len(space.axes[self.axis]) // options)

    def _initial_state(self, space: DesignSpace) -> SearchState:
        """Return all designs, with the sizes that constraints and the prefilter leave."""
        sizes = np.array(space.axes[self.axis], np.float64)
        first, step = at_first_value(space, self.axis)
        low, end = _intervals(space, first, step, len(sizes))
        first, low, end = (a[end > low] for a in (first, low, end))
        devices = space.derive(first)[self.devices].to_numpy(zero_copy_only=False)
        kind = [(pl.col(self.contrast) > 0).alias("kind")] if self.contrast else []
        named = dict.fromkeys([*self.given, *([self.contrast] if self.contrast else [])])
        answer = _numbered(space.points(first, named).select(*dict.fromkeys(self.given), *kind))
        rest = [n for n in space.varied if n not in (self.axis, *self.options)]
        return SearchState(
            first,
            step,
            devices.astype(np.float64) / sizes[0],
            sizes,
            (low, end),
            answer,
            _numbered(space.points(first, dict.fromkeys([*self.given, *rest]))),
            self._options(space, first),
        )

    def _options(self, space: DesignSpace, first: Index) -> Ints:
        """Return the place of the value of each option, one row a design; 0 is the default."""
        points, found = (
            space.points(first, self.options),
            np.zeros((len(first), len(self.options)), np.int64),
        )
        for column, name in enumerate(self.options):
            places = {value: i for i, value in enumerate(dict.fromkeys(space.axes[name]))}
            found[:, column] = [places[value] for value in points[name].to_list()]
        return found

    def _prefilter(self, space: DesignSpace, state: SearchState, screened: Index) -> None:
        """Predict default designs at their largest size, then half of that, and so on.

        All sizes are evaluated in one batch, since sizes of a design share most of the work.
        """
        state.begin_screening(screened)
        designs, place, steps = screened, state.end[screened] - 1, []
        while len(designs):
            steps.append((designs, place, state.number(designs, place)))
            further = place > state.low[designs]
            designs, place = designs[further], (place[further] + 1) // 2 - 1
            place = np.maximum(place, state.low[designs])
        index = np.unique(np.concatenate([numbers for _, _, numbers in steps] or [_NO_NUMBERS]))
        factors = self.requirement.prefilter(space.batch(index)) if len(index) else np.empty(0)
        is_open = np.ones(len(state.first), bool)
        for designs, place, numbers in steps:
            mine = is_open[designs]
            found = factors[np.searchsorted(index, numbers[mine])]
            state.predict(designs[mine], place[mine], found)
            is_open[designs[mine]] = found <= _HOPELESS
        state.end_screening(screened)

    def _misses(self, space: DesignSpace, results: pl.LazyFrame, index: Index) -> Floats:
        """Return the factor by which each point misses; infinity if it is infeasible."""
        needed = results.select(*space.axes, "status", *self.requirement.columns)
        rows = answers_at(space, needed, index)
        ok = (rows["status"].cast(pl.String) == "ok").fill_null(value=False)
        return np.where(ok, self.requirement.misses(rows), np.inf)


def _numbered(rows: pl.DataFrame) -> Ints:
    """Return a number from 0 for each distinct row."""
    found = rows.select(pl.struct(pl.all()).rank("dense").alias("__number"))["__number"]
    return found.to_numpy().astype(np.int64) - 1


def _intervals(space: DesignSpace, first: Index, step: int, sizes: int) -> tuple[Index, Index]:
    """Return the places of the first allowed size of each design, and behind the last one.

    The interval of a design is found if it holds place 0, 1, 3, 7, ... or the last place.
    """

    def is_allowed(designs: Index, places: Index) -> Mask:
        kept = space.kept(first[designs] + step * places)
        return np.ones(len(designs), bool) if kept is None else kept

    powers = 1 << np.arange(sizes.bit_length())
    low, refused = np.full(len(first), sizes), np.full(len(first), -1)
    unknown = np.arange(len(first))
    for place in dict.fromkeys(np.minimum(powers, sizes) - 1):
        found = is_allowed(unknown, np.full(len(unknown), place))
        low[unknown[found]], refused[unknown[~found]] = place, place
        unknown = unknown[~found]
    end = np.where(low < sizes, low + 1, low)
    for more in powers[::-1]:
        tried = np.flatnonzero((end > low) & (end + more <= sizes))
        end[tried[is_allowed(tried, end[tried] + more - 1)]] += more
    for less in powers[::-1]:
        tried = np.flatnonzero((end > low) & (low - less > refused))
        low[tried[is_allowed(tried, low[tried] - less)]] -= less
    return low, end


class SearchState:
    """State of the search: a range of sizes per design; a size is a number of replicas.

    Args:
        first: number of the point of each design at the smallest size.
        step: distance of the numbers of neighbouring sizes.
        unit: devices of one replica of each design.
        sizes: the ascending sizes.
        interval: places of the first allowed size of each design, and behind the last one.
        answer: number of the answer of each design.
        group: equal for designs that differ in options alone.
        options: values of the options of each design, a row each; 0 is the default.
    """

    def __init__(
        self,
        first: Index,
        step: int,
        unit: Floats,
        sizes: Floats,
        interval: tuple[Index, Index],
        answer: Ints,
        group: Ints,
        options: Ints,
    ) -> None:
        self.first, self.step, self.unit, self.sizes = first, step, unit, sizes
        self.low, self.end, self.answer = *interval, answer
        self.options, self.changed = options, (options > 0).sum(axis=1)
        self._radix = np.cumprod([1, *(options.max(axis=0, initial=0) + 1)])
        self._keys = group * self._radix[-1] + options @ self._radix[:-1]
        self._order = np.argsort(self._keys, kind="stable")
        default = self._designs_at(group * self._radix[-1])
        self.base = np.where(default >= 0, default, np.arange(len(first)))
        self.is_default = self.base == np.arange(len(first))
        self.changed[self.is_default] = 0
        self.miss: dict[int, dict[int, float]] = {}  # of a design by place of the size
        self.predicted: dict[int, dict[int, float]] = {}  # likewise
        self.least_miss = np.full(len(first), np.inf)
        self.smallest = np.full(len(first), np.inf)  # devices of the smallest promising size
        answers = int(answer.max()) + 1 if len(answer) else 0
        self.best = np.full(answers, np.inf)  # fewest devices so far
        self._rounds = np.zeros(answers, np.int64)
        self._stride = np.ones(answers)  # devices below the best at which options are tried
        self._compared = np.zeros(answers, bool)
        self._leads = np.zeros(len(first), bool)  # designs that are bisected
        self._is_unscreened = self.is_default.copy()  # designs without a prediction yet
        self._hopeless = self.end.copy()  # the place of the first size that is not excluded
        self.start = self.end.copy()  # the smallest size that is neither hopeless nor failed

    def _designs_at(self, keys: Ints) -> Index:
        """Return the design of each key of a group and options; -1 if there is none."""
        places = np.searchsorted(self._keys, keys, sorter=self._order)
        found = self._order[np.minimum(places, len(self._keys) - 1)]
        return np.where(self._keys[found] == keys, found, -1)

    def number(self, designs: Index, places: Index) -> Index:
        """Return the numbers of points."""
        return self.first[designs] + self.step * places

    def predict(self, designs: Index, places: Index, factors: Floats) -> None:
        """Record predicted factors; a hopeless size excludes itself and smaller sizes."""
        for design, place, factor in zip(
            designs.tolist(), places.tolist(), factors.tolist(), strict=True
        ):
            self.predicted.setdefault(design, {})[place] = factor
        is_hopeless = factors > _HOPELESS
        self._hopeless[designs[is_hopeless]] = places[is_hopeless] + 1
        hopeful, at = designs[~is_hopeless], places[~is_hopeless]
        self.smallest[hopeful] = self.unit[hopeful] * self.sizes[at]

    def to_screen(self) -> Index:
        """Return default designs to predict next, of answers without other probes.

        Until a design meets the requirement, those with the fewest devices; then all that can be
        smaller than the answer, or equal where that is compared.
        """
        found = [_NO_NUMBERS]
        for answer in range(len(self.best)):
            new = np.flatnonzero((self.answer == answer) & self._is_unscreened)
            if not len(new) or len(self._bisection(answer)):
                continue
            least, best = self.unit[new] * self.sizes[self.low[new]], self.best[answer]
            if best == np.inf:
                found.append(new[least == least.min()])
            elif not len(self._near_misses(answer)):
                found.append(new[least < best if self._is_ample(answer) else least <= best])
        return np.concatenate(found)

    def begin_screening(self, designs: Index) -> None:
        """Allow all sizes of designs that are about to be predicted."""
        self._is_unscreened[designs] = False
        self._hopeless[designs] = self.low[designs]

    def end_screening(self, designs: Index) -> None:
        """Open designs and their other options at sizes that are not hopeless.

        If no design of an answer has such a size, the largest one of the best design is kept.
        """
        for answer in np.unique(self.answer[designs]).tolist():
            mine = np.flatnonzero((self.answer == answer) & self.is_default)
            is_closed = (self._hopeless[mine] >= self.end[mine]).all()
            if is_closed and not self._rounds[answer] and not self._is_unscreened[mine].any():
                least = [min(self.predicted[d].values(), default=math.inf) for d in mine.tolist()]
                nearest, best = mine[np.argmin(least)], min(least)
                self._hopeless[nearest] = self.end[nearest] - 1
                designs = np.union1d(designs, [nearest])
                if np.isfinite(best):
                    self.smallest[nearest] = self.unit[nearest] * self.sizes[self.end[nearest] - 1]
        is_new = np.isin(self.base, designs)
        self._hopeless[is_new] = np.maximum(self.low, self._hopeless[self.base])[is_new]
        self.start[is_new] = self._hopeless[is_new]
        for answer in np.unique(self.answer[designs]).tolist():
            mine = designs[self.answer[designs] == answer]
            hopeful = mine[self._hopeless[mine] < self._ends(mine)]
            self._leads[hopeful[self._promising(hopeful)[:_LEADERS]]] = True

    def learn(self, probes: Index, factors: Floats) -> None:
        """Record the factors by which probes missed; an infeasible probe rules out its design."""
        before = self.best.copy()
        asked = np.unique(self.answer[probes[:, 0]])
        for (design, place), factor in zip(probes.tolist(), factors.tolist(), strict=True):
            self.miss.setdefault(design, {})[place] = factor
            self.least_miss[design] = min(self.least_miss[design], factor)
            answer = self.answer[design]
            if factor <= 1.0:
                devices = self.unit[design] * self.sizes[place]
                self.best[answer] = min(self.best[answer], devices)
                self._leads[design] = True
            elif factor == math.inf:
                self.miss[design] = dict.fromkeys(self.miss[design], math.inf)
                self.least_miss[design] = math.inf
                self.start[design] = self._hopeless[design] = self.end[design]
            else:
                self.start[design] = max(self.start[design], place + 1)
                if factor > _PROMISING and self.best[answer] < np.inf:
                    self._leads[design] = False
        self._rounds[asked] += 1
        fell = self.best[asked] < before[asked]
        self._stride[asked] = np.where(fell, 2 * self._stride[asked], 1.0)

    def next_probes(self) -> Index:
        """Return the next probes of every answer, as pairs of a design and a column."""
        found = [_NO_PROBES]
        for answer in range(len(self.best)):
            steps = (self._bisection, self._near_misses, self._other_options, self._equal_sizes)
            found.append(next((p for p in (s(answer) for s in steps) if len(p)), _NO_PROBES))
        return np.concatenate(found)

    def forecast(self) -> int:
        """Return the number of points to come, if designs miss as predicted."""
        ratios = self._ratios()
        scale = float(np.median(ratios)) if ratios else _FOREKNOWN
        state, points = copy.copy(self), 0
        for name in ("start", "best", "least_miss", "_rounds", "_stride", "_compared", "_leads"):
            setattr(state, name, getattr(self, name).copy())
        state._hopeless = self._hopeless.copy()
        state.miss = {design: dict(known) for design, known in self.miss.items()}
        for _ in range(_FORECAST_ROUNDS):
            if not len(probes := state.next_probes()):
                break
            points += len(probes)
            factors = np.array(
                [self._expected(self.base[design], place) for design, place in probes.tolist()]
            )
            # Half of the changed options are expected to do harm.
            does_harm = (self.changed[probes[:, 0]] == 1) & (probes[:, 0] % 2 == 0)
            factors *= np.where(does_harm, scale * _HARMFUL, scale)
            state.learn(probes, factors)
        return points

    def _ratios(self, steepest: float = math.inf) -> list[float]:
        """Return simulated over predicted misses of default designs.

        `steepest`: largest ratio of the two predictions that a prediction is interpolated from.
        """
        return [
            factor / expected
            for design, known in self.miss.items()
            if self.is_default[design]
            for place, factor in known.items()
            if factor < math.inf and 0.0 < (expected := self._expected(design, place)) < math.inf
            if self._steepness(design, place) <= steepest
        ]

    def _steepness(self, design: int, place: int) -> float:
        """Return the ratio of the predictions at the next smaller and the next larger size."""
        known = self.predicted.get(design) or {place: 1.0}
        smaller = known[max((p for p in known if p <= place), default=min(known))]
        return smaller / max(self._least_expected(design, place), 1e-9)

    def screened(self, answer: int) -> Screened:
        """Return the default designs that the prefilter excluded at all sizes below the answer.

        Errors of the prediction are those at simulated designs (`sweeper.query.screening`), unless
        interpolated across a steep rise, as at a load close to capacity. An excluded design misses
        by at least the prediction at the next larger predicted size.
        """
        if self.best[answer] == np.inf:
            return Screened(0, None)
        mine = np.flatnonzero((self.answer == answer) & self.is_default)
        end = self._ends(mine)
        is_out = (end > self.low[mine]) & (self._hopeless[mine] >= end)
        is_out &= self._is_untried(mine)
        factors = [
            self._least_expected(design, place)
            for design, place in zip(mine[is_out].tolist(), (end[is_out] - 1).tolist(), strict=True)
        ]
        errors = np.log(self._ratios(_STEEPEST))
        known = np.array([f for f in factors if f < _NEVER])
        if len(errors) < screening.LEAST:
            return Screened(len(known), None)
        total = float(screening.tail_probabilities(errors, -np.log(known)).sum())
        return Screened(len(known), min(1.0, total))

    def _expected(self, design: int, place: int) -> float:
        """Return the predicted factor at a size, interpolated between powers of two."""
        known = self.predicted.get(design)
        if not known:
            return 1.0
        places = np.array(sorted(known))
        factors = np.clip([known[p] for p in places.tolist()], 1e-9, 1e9)
        sizes = np.log(self.sizes[places])
        return float(np.exp(np.interp(math.log(self.sizes[place]), sizes, np.log(factors))))

    def _least_expected(self, design: int, place: int) -> float:
        """Return the predicted factor at the next size, from this one on, that was predicted."""
        known = self.predicted.get(design) or {place: 1.0}
        return known[min((p for p in known if p >= place), default=max(known))]

    def _ends(self, designs: Index) -> Index:
        """Return the place behind the largest size of each design below the answer."""
        below = np.searchsorted(self.sizes, self.best[self.answer[designs]] / self.unit[designs])
        ends: Index = np.minimum(self.end[designs], below)
        return ends

    def _bisection(self, answer: int) -> Index:
        """Return default designs at a size below the best: leaders bisect, others go last."""
        designs = np.flatnonzero((self.answer == answer) & self.is_default)
        end = self._ends(designs)
        is_open = self.start[designs] < end
        designs, end = designs[is_open], end[is_open]
        if not len(designs):
            return _NO_PROBES
        if not (leads := self._leads[designs]).any():
            order = self._promising(designs)[:_PER_ROUND]
            return np.column_stack((designs, end - 1))[order]
        designs, end = designs[leads], end[leads]
        start, unit = self.start[designs], self.unit[designs]
        low, high = (unit * self.sizes[start]).min(), (unit * self.sizes[end - 1]).max()
        target = max(low, math.floor(math.sqrt(low * high)))
        if self.best[answer] == np.inf:
            target = self._first_target(designs, low, high)
        place = np.minimum(np.searchsorted(self.sizes, target / unit, side="right"), end) - 1
        designs, place = designs[place >= start], place[place >= start]
        return np.column_stack((designs, place))[self._promising(designs)[:_PER_ROUND]]

    def _first_target(self, designs: Index, low: float, high: float) -> float:
        """Return the devices to try until a design meets the requirement."""
        if self._is_untried(designs).all():
            return max(low, float(self.smallest[designs].min()))
        least = self.least_miss[designs].min()
        return min(high, low * max(least, _GROWTH)) if least < _PROMISING else high

    def _promising(self, designs: Index) -> Index:
        """Return an order of designs: near misses, untried designs by prediction, the rest."""
        miss = self.least_miss[designs]
        untried = self._is_untried(designs)
        rank = np.where(untried, 1, np.where(miss < _PROMISING, 0, 2))
        order: Index = np.lexsort((np.where(untried, self.smallest[designs], miss), rank))
        return order

    def _near_misses(self, answer: int) -> Index:
        is_near = (self.answer == answer) & (self.least_miss < _NEAR_MISS) & self.is_default
        found = {
            (design, place - less)
            for design in np.flatnonzero(is_near).tolist()
            for place, factor in self.miss.get(design, {}).items()
            if 1.0 < factor < _NEAR_MISS
            for less in range(1, _FEWER + 1)
            if self._is_open(design, place - less)
        }
        return np.array(sorted(found), np.int64).reshape(-1, 2)

    def _other_options(self, answer: int) -> Index:
        """Return designs with other options, below the best size by a stride that grows."""
        designs = np.flatnonzero((self.answer == answer) & ~self.is_default)
        end = self._ends(designs)
        is_open = self.start[designs] < end
        designs, end = designs[is_open], end[is_open]
        pairs = zip(designs.tolist(), (end - 1).tolist(), strict=True)
        miss = np.array([self._base_miss(*pair) for pair in pairs], np.float64)
        least = _TUNABLE
        if len(miss) and self.best[answer] == np.inf:
            least = max(least, min(_TUNABLE_NEAREST, math.nextafter(miss.min(), math.inf)))
        is_tunable = miss < least
        is_tunable &= np.array([self._is_combined(d) for d in designs.tolist()], bool)
        designs, end, miss = designs[is_tunable], end[is_tunable], miss[is_tunable]
        place = end - 1
        if len(designs) and self._stride[answer] > 1.0 and self.best[answer] < np.inf:
            target = self.best[answer] - self._stride[answer] * self.unit[designs].min()
            lower = np.searchsorted(self.sizes, target / self.unit[designs], side="right") - 1
            if (lower >= self.start[designs]).any():
                place = np.minimum(place, lower)
        rows = np.flatnonzero(place >= self.start[designs])
        order = rows[np.lexsort((miss[rows], self.changed[designs[rows]]))][:_PER_ROUND]
        return np.column_stack((designs, place))[order]

    def _base_miss(self, design: int, place: int) -> float:
        """Return a lower bound of the default design's miss at a size; 1 where it is unknown."""
        known = self.miss.get(int(self.base[design]), {})
        return known[min(larger)] if (larger := [p for p in known if p >= place]) else 1.0

    def _is_combined(self, design: int) -> bool:
        """Return whether no changed option alone raises the miss; True for one changed option."""
        if self.changed[design] == 1:
            return True
        base, options = self.miss.get(int(self.base[design]), {}), self.options[design]
        columns = np.flatnonzero(options)
        group = self._keys[design] - options @ self._radix[:-1]
        singles = self._designs_at(group + options[columns] * self._radix[columns])
        return all(
            any(
                factor < _HARMFUL * base[place]
                for place, factor in self.miss.get(single, {}).items()
                if place in base
            )
            for single in singles.tolist()
        )

    def _is_untried(self, designs: Index) -> Mask:
        return np.array([design not in self.miss for design in designs.tolist()], bool)

    def _equal_sizes(self, answer: int) -> Index:
        """Return, once, designs of the best size, and the best designs with one more replica.

        A design that needs less than half of its deadlines is not compared.
        """
        best = self.best[answer]
        if self._compared[answer] or best == np.inf:
            return _NO_PROBES
        self._compared[answer] = True
        place = np.minimum(np.searchsorted(self.sizes, best / self.unit), len(self.sizes) - 1)
        is_equal = (self.answer == answer) & (self.unit * self.sizes[place] == best)
        met = {
            (d, p): self.miss[d][p]
            for d in np.flatnonzero(is_equal).tolist()
            if self.miss.get(d, {}).get(p := int(place[d]), math.inf) <= 1.0
        }
        if self._is_ample(answer):
            return _NO_PROBES
        bases = {self.base[d] for d, _ in sorted(met, key=met.__getitem__)[:1]}
        is_equal &= self.is_default | (np.isin(self.base, [*bases]) & (self.changed == 1))
        pairs = [(d, int(place[d])) for d in np.flatnonzero(is_equal).tolist()]
        same = np.array([pair for pair in pairs if self._is_open(*pair)], np.int64).reshape(-1, 2)
        larger = [(d, p + 1) for d, p in met if self._is_open(d, p + 1)][:_EQUAL_SIZE]
        order = self._promising(same[:, 0])[:_EQUAL_SIZE]
        return np.concatenate([same[order], np.array(larger, np.int64).reshape(-1, 2)])

    def _is_ample(self, answer: int) -> bool:
        """Return whether a design of the best size needs less than half of its deadlines."""
        best = self.best[answer]
        return any(
            factor < _AMPLE
            for design, known in self.miss.items()
            if self.answer[design] == answer
            for place, factor in known.items()
            if self.unit[design] * self.sizes[place] == best
        )

    def _is_open(self, design: int, place: int) -> bool:
        is_allowed = self._hopeless[design] <= place < self.end[design]
        return bool(is_allowed and place not in self.miss.get(design, {}))
