"""Searches ask for designs and are told what came of them, until enough points are answered.

What a search is told are losses, all to be made small, of designs that meet the space's `where`, of
others that were simulated, and of those that cannot be. A search that is run again over its own
results asks for the same designs, finds them answered, and goes on where it was stopped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from simulators.core.errors import UserError, unknown
from simulators.core.jit import Ints
from sweeper.query.pareto import minimised
from sweeper.query.pareto_kernel import Matrix
from sweeper.query.ranks import crowding, rank_layers
from sweeper.query.repricing import priced, repriced
from sweeper.query.scenarios import MEAN, WORST
from sweeper.samplers import (
    IMPOSSIBLE,
    MEETS,
    SIMULATED,
    Goal,
    Results,
    Sampler,
    Searches,
    Told,
)
from sweeper.samplers.lhs import spread_evenly
from sweeper.samplers.random import allowed, in_blocks
from sweeper.space.design_space import DesignSpace
from sweeper.space.notation import Scalar
from sweeper.space.product import Codes
from sweeper.space.spans import Batch, Index, Mask
from sweeper.space.sql import excess, parsed

_PATIENCE = 8
"""Times in a row that a search may ask for nothing new before points are drawn for it."""


@dataclass(frozen=True)
class Options:
    """What all searches are asked for; their own docstrings say what it means."""

    points: int = 1000
    seed: int = 0
    start: str = ""
    across: str = ""

    def __post_init__(self) -> None:
        if self.points < 1:
            raise UserError(f"sampler.points={self.points}: a search looks at one point at least")
        if self.seed < 0:
            raise UserError(f"sampler.seed={self.seed}: a seed is not negative")
        if self.across not in ("", WORST, MEAN):
            raise unknown(f"sampler.across={self.across}", self.across, (WORST, MEAN))

    def size(self, space: DesignSpace) -> int:
        """Return the number of points asked for, at most the space."""
        return min(self.points, len(space))


@dataclass(frozen=True)
class Guided:
    """A sampler that does what a search asks, and tells it what came of it."""

    searches: Searches
    goal: Goal

    def size(self, space: DesignSpace) -> int:
        """Return how many points will be picked at most."""
        return self.searches.size(space)

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield a round for each time that the search asks for something new."""
        designs = Designs.of(space, self.goal, self.searches.across)
        goal = replace(self.goal, given=() if designs.how else self.goal.given)
        if (least := len(designs.offsets)) > self.searches.points:
            raise UserError(
                f"sampler.points={self.searches.points}: with sampler.across={designs.how} a "
                f"design takes {least} points, one in each scenario"
            )
        search, known = self.searches.search(designs.space, goal), Seen(designs.space)
        memory: Told | None = None
        spent = idle = 0
        while (left := (self.searches.points - spent) // len(designs.offsets)) > 0:
            asked = np.asarray(search.ask(), np.int64)
            if not len(asked):
                return
            fresh = designs.possible(known.fresh(asked))[:left]
            idle = 0 if len(fresh) else idle + 1
            if memory is not None and 0 < idle <= _PATIENCE:
                search.tell(_remembered(memory, asked[known.has(asked)]))
                continue
            if not len(fresh):
                fresh = designs.possible(known.drawn())[: min(left, len(asked))]
            if not len(fresh):
                return
            idle = 0
            known.add(fresh)
            spent += len(fresh) * len(designs.offsets)
            yield in_blocks(designs.points(fresh))
            told = designs.told(results(), fresh)
            memory = told if memory is None else memory.joined(told)
            heard = np.concatenate([asked[known.has(asked)], fresh])
            _, first = np.unique(heard, return_index=True)
            search.tell(_remembered(memory, heard[np.sort(first)]))


def _remembered(memory: Told, index: Index) -> Told:
    """Return what came of designs that were told before."""
    order = np.argsort(memory.index)
    return memory.take(order[np.searchsorted(memory.index[order], index)])


def guided(sampler: Sampler | Searches, goal: Goal) -> Sampler:
    """Return a sampler as it is, or one that does what a search asks."""
    return Guided(sampler, goal) if isinstance(sampler, Searches) else sampler


class Seen:
    """Which designs of a space were looked at."""

    def __init__(self, space: DesignSpace) -> None:
        self._space, self._numbers = space, np.empty(0, np.int64)
        self._random = np.random.default_rng(0)

    def has(self, index: Index) -> Index:
        """Return which of some numbers were."""
        return np.flatnonzero(np.isin(index, self._numbers))

    def fresh(self, index: Index) -> Index:
        """Return the allowed ones that were not, each once and in order."""
        _, first = np.unique(index, return_index=True)
        new = index[np.sort(first)]
        return allowed(self._space, new[~np.isin(new, self._numbers)])

    def add(self, index: Index) -> None:
        """Note that these are looked at now."""
        self._numbers = np.union1d(self._numbers, index)

    def drawn(self) -> Index:
        """Return some that were not, at random; of a small space all that are left."""
        if len(self._space) <= 1 << 16:
            return self.fresh(self._random.permutation(len(self._space)))
        return self.fresh(self._space.drawn(self._random, 1 << 12))


@dataclass(frozen=True)
class Designs:
    """The designs of a space: its points, or where scenarios count together what is left of them.

    Args:
        space: of designs, whose numbers a search is told.
        whole: of all points.
        offsets: of each scenario, from the number of a design's first point.
        goal: what is wanted.
        how: a design's value of several scenarios.
    """

    space: DesignSpace
    whole: DesignSpace
    offsets: Index
    goal: Goal
    how: str

    @classmethod
    def of(cls, space: DesignSpace, goal: Goal, how: str) -> Designs:
        """Return what a search compares; scenarios one by one unless it says `how` together."""
        given = [n for n in goal.given if n in space.varied] if how else []
        if not given:
            return cls(space, space, np.zeros(1, np.int64), goal, "")
        offsets, stride = [np.zeros(1, np.int64)], 1
        narrowed: dict[str, Scalar] = {}
        for factor in reversed(space.factors):
            mine = [n for n in factor.columns if n in given]
            if mine and len(mine) < sum(len(set(v)) > 1 for v in factor.columns.values()):
                raise UserError(f"sampler.across={how}: {', '.join(factor.columns)} move together")
            if mine:
                offsets.append(np.arange(len(factor), dtype=np.int64) * stride)
                narrowed |= {n: factor.columns[n][0] for n in mine}
            stride *= len(factor)
        sums = [sum(row) for row in itertools.product(*offsets)]
        return cls(space.at(narrowed), space, np.array(sorted(sums), np.int64), goal, how)

    def points(self, index: Index) -> Index:
        """Return the numbers of the points of some designs, those of one design together."""
        if not self.how:
            return index
        total = np.zeros(len(index), np.int64)
        codes = self.space.codes(index)
        for factor, mine in zip(self.whole.factors, codes, strict=True):
            total = total * len(factor) + mine
        return (total[:, np.newaxis] + self.offsets).ravel()

    def possible(self, index: Index) -> Index:
        """Return the designs all of whose points the constraints allow."""
        if not self.how or not len(index):
            return index
        kept = self.whole.kept(self.points(index))
        return index if kept is None else index[kept.reshape(len(index), -1).all(axis=1)]

    def told(self, results: pl.LazyFrame, index: Index) -> Told:
        """Return what came of designs that were answered."""
        rows = answers_at(self.whole, results, self.points(index), self._needed(results))
        goal, ok = self.goal, (rows["status"].cast(pl.String) == "ok").fill_null(value=False)
        met = ok
        if goal.where:
            condition = parsed(goal.where, f"where '{goal.where}'")
            met = ok & rows.select(condition.fill_null(value=False)).to_series()
        losses = minimised(rows, goal.objectives)
        known = ok.to_numpy() & ~np.isnan(losses).any(axis=1)
        tier = np.where(known, np.where(met.to_numpy(), MEETS, SIMULATED), IMPOSSIBLE)
        losses = np.where(known[:, np.newaxis], losses, np.inf)
        beyond = excess(goal.where or "", rows)
        if self.how:
            shape = (len(index), len(self.offsets))
            together = losses.reshape(*shape, -1)
            losses = together.max(axis=1) if self.how == WORST else together.mean(axis=1)
            tier, beyond = tier.reshape(shape).max(axis=1), beyond.reshape(shape).max(axis=1)
            return Told(index, losses, tier, np.zeros(len(index), np.int64), beyond)
        return Told(index, losses, tier, scenario_numbers(self.whole, goal.given, index), beyond)

    def _needed(self, results: pl.LazyFrame) -> pl.LazyFrame:
        """Return results in the first of the prices that are asked for."""
        if self.goal.priced is None:
            return results
        first = {n: values[0] for n, values in self.goal.priced.axes.items()}
        return repriced(results, priced(self.goal.priced, first))


def answers_at(
    space: DesignSpace, results: pl.LazyFrame, index: Index, shown: pl.LazyFrame | None = None
) -> pl.DataFrame:
    """Return a row of results for each point by number, nulls where there is none.

    Args:
        space: whose numbers they are.
        results: its rows.
        index: the points.
        shown: the same rows with what is to be returned, if that is not `results`.
    """
    numbers = space.index_of(results.select(list(space.axes)).collect())
    wanted = np.isin(numbers, index)
    rows = (results if shown is None else shown).filter(pl.Series(wanted)).collect()
    order = pl.DataFrame({"__number": index})
    found = rows.with_columns(__number=pl.Series(numbers[wanted]))
    return order.join(found, on="__number", how="left", maintain_order="left")


def scenario_numbers(space: DesignSpace, given: Sequence[str], index: Index) -> Ints:
    """Return a number for each point: those with the same values of the given axes have the same.

    >>> space = DesignSpace.of("kernels", gpu="l4", op="gemm", m=[1, 2], n=[3, 4])
    >>> scenario_numbers(space, ["n"], np.arange(4)).tolist()
    [0, 1, 0, 1]
    """
    total = np.zeros(len(index), np.int64)
    for factor, codes in zip(space.factors, space.codes(index), strict=True):
        if mine := [factor.columns[name] for name in factor.columns if name in given]:
            rows = list(zip(*mine, strict=True))
            number = {row: i for i, row in enumerate(dict.fromkeys(rows))}
            total = total * len(number) + np.array([number[row] for row in rows])[codes]
    return total


def ranked(told: Told) -> tuple[Ints, Matrix]:
    """Return the rank of each design in its scenario, 0 the best, and how alone it stands there.

    Designs that meet the condition come before those that were simulated, and these before those
    that cannot be; among equals layers of the front count, or of those that do not meet how far
    they are beyond its limits (Deb's rule of constrained domination), where it sets any.
    """
    ranks, distance = np.zeros(len(told.index), np.int64), np.zeros(len(told.index))
    for group in np.unique(told.group):
        before = 0
        for tier in (MEETS, SIMULATED, IMPOSSIBLE):
            rows = np.flatnonzero((told.group == group) & (told.tier == tier))
            if not len(rows):
                continue
            layers = np.ones(len(rows), np.int64)
            if tier != IMPOSSIBLE:
                beyond = told.excess[rows, np.newaxis]
                missed = tier == SIMULATED and beyond.any()
                layers = rank_layers(beyond if missed else told.losses[rows])
                for layer in range(1, int(layers.max()) + 1):
                    members = rows[layers == layer]
                    distance[members] = crowding(told.losses[members])
            ranks[rows] = before + layers - 1
            before += int(layers.max())
    return ranks, distance


def sizes_of(space: DesignSpace) -> Ints:
    """Return how many rows each factor of a space has."""
    return np.array([len(factor) for factor in space.factors], np.int64)


def ordered_of(space: DesignSpace) -> Mask:
    """Return which factors are numbers in order, so that near rows are alike."""

    def is_ordered(values: tuple[object, ...]) -> bool:
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        rising = all(a < b for a, b in itertools.pairwise(numbers))
        falling = all(a > b for a, b in itertools.pairwise(numbers))
        return len(numbers) == len(values) and (rising or falling)

    return np.array([all(is_ordered(v) for v in f.columns.values()) for f in space.factors])


def number_of(codes: Ints, sizes: Ints) -> Index:
    """Return the number of each row of codes, one per factor, the first slowest.

    >>> number_of(np.array([[1, 2]]), np.array([3, 4])).tolist()
    [6]
    """
    total = np.zeros(len(codes), np.int64)
    for column, size in zip(codes.T, sizes.tolist(), strict=True):
        total = total * size + column
    return total


def codes_of(space: DesignSpace, index: Index) -> Ints:
    """Return the row of each factor that points take, one point a row."""
    columns: list[Codes] = space.codes(index)
    return np.stack(columns, axis=1).astype(np.int64)


def started(space: DesignSpace, file: str) -> Index:
    """Return the designs of this space that are nearest to those of an earlier result.

    Args:
        space: the designs.
        file: a Parquet or CSV file with a column for some of the axes, such as the `front.parquet`
            of a run. Axes it lacks take their first value, numbers the nearest there is, above
            zero on a logarithm, and words that are none of the axis drop a design.

    Raises:
        UserError: it cannot be read, or none of its rows is a design.
    """
    if not file:
        return np.empty(0, np.int64)
    try:
        rows = pl.read_csv(file) if file.endswith(".csv") else pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"sampler.start={file} cannot be read: {error}") from error
    if not any(name in rows.columns for name in space.varied):
        raise UserError(f"sampler.start={file} has none of the axes {', '.join(space.varied)}")
    found = [nearest(space, row) for row in rows.to_dicts()]
    if not (kept := [codes for codes in found if codes is not None]):
        raise UserError(f"sampler.start={file}: no row is a design of this space")
    return allowed(space, np.unique(number_of(np.array(kept, np.int64), sizes_of(space))))


def beginning(
    space: DesignSpace, options: Options, count: int, random: np.random.Generator
) -> Index:
    """Return the designs of `sampler.start`, and so many others that are spread evenly.

    A search of fewer points looks at the first of them, and one of more begins with those.
    """
    drawn = spread_evenly(space, random, count)
    if options.across or options.points < count:  # the first of them are spread evenly too
        drawn = np.random.default_rng(options.seed).permutation(drawn)
    first = started(space, options.start)
    return np.concatenate([first, drawn[~np.isin(drawn, first)]])


def nearest(space: DesignSpace, row: Mapping[str, object]) -> list[int] | None:
    """Return the codes of the design nearest to a row; nothing if a word of it is unknown."""
    codes = []
    for factor in space.factors:
        away = np.zeros(len(factor))
        for name, values in factor.columns.items():
            if row.get(name) is not None:  # an empty cell says nothing
                away += [_apart(value, row[name]) for value in values]
        if np.isinf(away.min()):
            return None
        codes.append(int(np.argmin(away)))
    return codes


def _apart(value: object, other: object) -> float:
    if value == other:
        return 0.0
    if not (isinstance(value, int | float) and isinstance(other, int | float)):
        return math.inf
    apart = abs(math.log(value / other)) if min(value, other) > 0 else abs(value - other)
    return math.inf if math.isnan(apart) else apart
