"""Runs ask-and-tell searches until enough points are evaluated, and ranks their designs.

A search run again over its own results asks for the same designs, finds them answered, and so
continues where it was stopped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.errors import UserError, unknown
from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix, crowding_distance, rank_layers
from sweeper.query.pareto import minimised
from sweeper.query.scenarios import MEAN, WORST, priced, repriced
from sweeper.samplers import (
    IMPOSSIBLE,
    MEETS,
    SIMULATED,
    Goal,
    Observations,
    Results,
    Sampler,
    SearchSampler,
)
from sweeper.samplers.lhs import spread_evenly
from sweeper.samplers.random import allowed, check_options, in_blocks
from sweeper.space.axes import Scalar
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Index, Mask, number_of
from sweeper.space.sql import excess, parsed

_PATIENCE = 8  # requests in a row without a new design before designs are drawn at random


@dataclass(frozen=True)
class SearchOptions:
    """Options of every search, documented by the search itself."""

    points: int = 1000
    seed: int = 0
    start: str = ""
    across: str = ""

    def __post_init__(self) -> None:
        check_options(self.points, self.seed)
        if self.across not in ("", WORST, MEAN):
            raise unknown(f"sampler.across={self.across}", self.across, (WORST, MEAN))

    def size(self, space: DesignSpace) -> int:
        """Return the number of points asked for, at most the size of the space."""
        return min(self.points, len(space))


@dataclass(frozen=True)
class SearchDriver:
    """Runs an ask-and-tell search as a sampler."""

    sampler: SearchSampler
    goal: Goal

    def size(self, space: DesignSpace) -> int:
        """Return the largest number of points that the search picks."""
        return self.sampler.size(space)

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield a round for each `ask` of the search that names new designs."""
        candidates = Candidates.of(space, self.goal, self.sampler.across)
        goal = replace(self.goal, given=() if candidates.across else self.goal.given)
        if (least := len(candidates.offsets)) > self.sampler.points:
            raise UserError(
                f"sampler.points={self.sampler.points}: with sampler.across={candidates.across} a "
                f"design takes {least} points, one in each scenario"
            )
        search, random = self.sampler.search(candidates.space, goal), np.random.default_rng(0)
        history = Observations.none(len(goal.objectives))
        spent = repeats = 0
        while (left := (self.sampler.points - spent) // least) > 0:
            asked = np.asarray(search.ask(), np.int64)
            if not len(asked):
                return
            new = candidates.new(asked, history)[:left]
            if not len(new) and len(history.index) and repeats < _PATIENCE:
                repeats += 1
                search.tell(history.of(asked[np.isin(asked, history.index)]))
                continue
            if not len(new):
                new = candidates.drawn(random, history)[: min(left, len(asked))]
            if not len(new):
                return
            repeats = 0
            spent += len(new) * least
            yield in_blocks(candidates.points(new))
            history = history.with_new(candidates.observe(results(), new))
            known = np.concatenate([asked[np.isin(asked, history.index)], new])
            search.tell(history.of(_unique(known)))


def as_sampler(sampler: Sampler | SearchSampler, goal: Goal) -> Sampler:
    """Return a sampler unchanged, or a search sampler in a driver."""
    return SearchDriver(sampler, goal) if isinstance(sampler, SearchSampler) else sampler


def _unique(index: Index) -> Index:
    """Return each number once, in order of first occurrence."""
    return index[np.sort(np.unique(index, return_index=True)[1])]


@dataclass(frozen=True)
class Candidates:
    """The designs that a search compares: the points of a space, or groups of them over scenarios.

    Args:
        space: the designs; the search sees point numbers of this space.
        whole: the space of all points.
        offsets: from the number of a design's first point to that of each scenario.
        goal: objectives and condition.
        across: worst or mean, the statistic over scenarios; empty: each scenario has its designs.
    """

    space: DesignSpace
    whole: DesignSpace
    offsets: Index
    goal: Goal
    across: str

    @classmethod
    def of(cls, space: DesignSpace, goal: Goal, across: str) -> Candidates:
        """Return the designs of a space; with `across`, one per combination of the chosen axes.

        Raises:
            UserError: a given axis moves together with a chosen axis.
        """
        given = [n for n in goal.given if n in space.varied] if across else []
        if not given:
            return cls(space, space, np.zeros(1, np.int64), goal, "")
        offsets, stride = [np.zeros(1, np.int64)], 1
        narrowed: dict[str, Scalar] = {}
        for factor in reversed(space.factors):
            mine = [n for n in factor.columns if n in given]
            if mine and len(mine) < sum(len(set(v)) > 1 for v in factor.columns.values()):
                raise UserError(
                    f"sampler.across={across}: {', '.join(factor.columns)} move together"
                )
            if mine:
                offsets.append(np.arange(len(factor), dtype=np.int64) * stride)
                narrowed |= {n: factor.columns[n][0] for n in mine}
            stride *= len(factor)
        sums = [sum(row) for row in itertools.product(*offsets)]
        return cls(space.at(narrowed), space, np.array(sorted(sums), np.int64), goal, across)

    def points(self, index: Index) -> Index:
        """Return the numbers of all points of some designs, grouped by design."""
        if not self.across:
            return index
        first = number_of(self.space.codes(index), self.whole.sizes)
        return (first[:, np.newaxis] + self.offsets).ravel()

    def new(self, index: Index, history: Observations) -> Index:
        """Return the allowed designs that were not evaluated yet, each once and in order."""
        index = _unique(index)
        index = allowed(self.space, index[~np.isin(index, history.index)])
        if not self.across or not len(index):
            return index
        kept = self.whole.kept(self.points(index))
        return index if kept is None else index[kept.reshape(len(index), -1).all(axis=1)]

    def drawn(self, random: np.random.Generator, history: Observations) -> Index:
        """Return new designs drawn at random; of a small space all remaining designs."""
        if len(self.space) <= 1 << 16:
            return self.new(random.permutation(len(self.space)), history)
        return self.new(self.space.drawn(random, 1 << 12), history)

    def observe(self, results: pl.LazyFrame, index: Index) -> Observations:
        """Return the observations of designs that were evaluated."""
        goal, shown = self.goal, results
        if goal.priced is not None:  # designs are compared at the first of the prices asked for
            first = {n: values[0] for n, values in goal.priced.axes.items()}
            shown = repriced(results, priced(goal.priced, first))
        rows = answers_at(self.whole, results, self.points(index), shown)
        met = ok = (rows["status"].cast(pl.String) == "ok").fill_null(value=False)
        if goal.where:
            condition = parsed(goal.where, f"where '{goal.where}'")
            met = ok & rows.select(condition.fill_null(value=False)).to_series()
        losses = minimised(rows, goal.objectives)
        known = ok.to_numpy() & ~np.isnan(losses).any(axis=1)
        tier = np.where(known, np.where(met.to_numpy(), MEETS, SIMULATED), IMPOSSIBLE)
        losses = np.where(known[:, np.newaxis], losses, np.inf)
        beyond = excess(goal.where or "", rows)
        if not self.across:
            group = scenario_numbers(self.whole, goal.given, index)
            return Observations(index, losses, tier, group, beyond)
        shape = (len(index), len(self.offsets))
        together = losses.reshape(*shape, -1)
        losses = together.max(axis=1) if self.across == WORST else together.mean(axis=1)
        tier, beyond = tier.reshape(shape).max(axis=1), beyond.reshape(shape).max(axis=1)
        return Observations(index, losses, tier, np.zeros(len(index), np.int64), beyond)


def answers_at(
    space: DesignSpace, results: pl.LazyFrame, index: Index, shown: pl.LazyFrame | None = None
) -> pl.DataFrame:
    """Return the row of results of each point, nulls where there is none.

    Args:
        space: the space of the points.
        results: its rows.
        index: numbers of the points.
        shown: the same rows in the same order, with the columns to return; default `results`.
    """
    numbers = space.index_of(results.select(list(space.axes)).collect())
    wanted = np.isin(numbers, index)
    rows = (results if shown is None else shown).filter(pl.Series(wanted)).collect()
    order = pl.DataFrame({"__number": index})
    found = rows.with_columns(__number=pl.Series(numbers[wanted]))
    return order.join(found, on="__number", how="left", maintain_order="left")


def scenario_numbers(space: DesignSpace, given: Sequence[str], index: Index) -> Ints:
    """Return a scenario number per point: points with equal values of the given axes share one.

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


def ranked(observed: Observations) -> tuple[Ints, Matrix]:
    """Return the rank of each design in its scenario, 0 the best, and its crowding distance.

    Designs that meet the condition come first, then simulated ones, then impossible ones. Within a
    tier designs are ranked by fronts; those that miss the condition by how far they exceed its
    limits, where it has any (constrained domination, Deb 2002).
    """
    ranks, distance = np.zeros(len(observed.index), np.int64), np.zeros(len(observed.index))
    for group in np.unique(observed.group):
        before = 0
        for tier in (MEETS, SIMULATED, IMPOSSIBLE):
            rows = np.flatnonzero((observed.group == group) & (observed.tier == tier))
            if not len(rows):
                continue
            layers = np.ones(len(rows), np.int64)
            if tier != IMPOSSIBLE:
                beyond = observed.excess[rows, np.newaxis]
                is_missed = tier == SIMULATED and beyond.any()
                layers = rank_layers(beyond if is_missed else observed.losses[rows])
                for layer in range(1, int(layers.max()) + 1):
                    members = rows[layers == layer]
                    distance[members] = crowding_distance(observed.losses[members])
            ranks[rows] = before + layers - 1
            before += int(layers.max())
    return ranks, distance


def ordered_of(space: DesignSpace) -> Mask:
    """Return a mask of the factors that hold only numbers, ascending or descending."""

    def is_ordered(values: tuple[object, ...]) -> bool:
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        rising = all(a < b for a, b in itertools.pairwise(numbers))
        falling = all(a > b for a, b in itertools.pairwise(numbers))
        return len(numbers) == len(values) and (rising or falling)

    return np.array([all(is_ordered(v) for v in f.columns.values()) for f in space.factors])


def with_value(space: DesignSpace, batch: pa.RecordBatch, name: str, value: Any) -> pa.RecordBatch:
    """Return a batch of points with one value in a column."""
    column = pa.array([value] * batch.num_rows, space.schema.field(name).type)
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, name, column.dictionary_encode())


def codes_of(space: DesignSpace, index: Index) -> Ints:
    """Return the row of each factor that points take, one point a row."""
    return np.stack(space.codes(index), axis=1).astype(np.int64)


def designs_in_file(space: DesignSpace, file: str) -> Index:
    """Return the designs of this space that are nearest to those of an earlier result.

    Args:
        space: the designs.
        file: a Parquet or CSV file with a column for some of the axes, such as the `front.parquet`
            of a run. A missing axis takes its first value, a number moves to the nearest value
            (on a logarithm where both are positive), and a row with an unknown word is dropped.

    Raises:
        UserError: the file cannot be read, or none of its rows is a design.
    """
    try:
        rows = pl.read_csv(file) if file.endswith(".csv") else pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"sampler.start={file} cannot be read: {error}") from error
    if not any(name in rows.columns for name in space.varied):
        raise UserError(f"sampler.start={file} has none of the axes {', '.join(space.varied)}")
    found = [nearest(space, row) for row in rows.to_dicts()]
    if not (kept := [codes for codes in found if codes is not None]):
        raise UserError(f"sampler.start={file}: no row is a design of this space")
    return allowed(space, np.unique(number_of(np.array(kept).T, space.sizes)))


def initial_designs(
    space: DesignSpace, options: SearchOptions, count: int, random: np.random.Generator
) -> Index:
    """Return the designs of `sampler.start`, then `count` others that are spread evenly.

    A search with fewer points evaluates a prefix of the designs of one with more.
    """
    drawn = spread_evenly(space, random, count)
    if options.across or options.points < count:  # a prefix is spread evenly too
        drawn = np.random.default_rng(options.seed).permutation(drawn)
    if not options.start:
        return drawn
    first = designs_in_file(space, options.start)
    return np.concatenate([first, drawn[~np.isin(drawn, first)]])


def nearest(space: DesignSpace, row: Mapping[str, object]) -> list[int] | None:
    """Return the codes of the design nearest to a row; None if the row has an unknown word."""
    codes = []
    for factor in space.factors:
        distance = np.zeros(len(factor))
        for name, values in factor.columns.items():
            if row.get(name) is not None:
                distance += [_distance(value, row[name]) for value in values]
        if np.isinf(distance.min()):
            return None
        codes.append(int(np.argmin(distance)))
    return codes


def _distance(value: object, other: object) -> float:
    if value == other:
        return 0.0
    if not (isinstance(value, int | float) and isinstance(other, int | float)):
        return math.inf
    distance = abs(math.log(value / other)) if min(value, other) > 0 else abs(value - other)
    return math.inf if math.isnan(distance) else distance
