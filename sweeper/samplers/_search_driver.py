"""Runs ask-and-tell searches until enough points are evaluated, and ranks their designs.

A search run again over its own results asks for the same designs, finds them answered, and so
continues where it was stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix, crowding_distance, rank_layers
from sweeper.query.pareto import minimised
from sweeper.query.scenarios import priced, repriced
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
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch, Index, Mask
from sweeper.space.sql import excess, parsed

_PATIENCE = 8  # requests in a row without a new design before designs are drawn at random


@dataclass(frozen=True)
class SearchOptions:
    """Options of every search, documented by the search itself."""

    points: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self.points, self.seed)

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
        search, random = self.sampler.search(space, self.goal), np.random.default_rng(0)
        history = Observations.none(len(self.goal.objectives))
        repeats = 0
        while (left := self.sampler.points - len(history.index)) > 0:
            asked = np.asarray(search.ask(), np.int64)
            if not len(asked):
                return
            new = _new(space, asked, history)[:left]
            if not len(new) and len(history.index) and repeats < _PATIENCE:
                repeats += 1
                search.tell(history.of(asked[np.isin(asked, history.index)]))
                continue
            if not len(new):
                new = _drawn(space, random, history)[: min(left, len(asked))]
            if not len(new):
                return
            repeats = 0
            yield in_blocks(new)
            history = history.with_new(_observed(space, self.goal, results(), new))
            known = np.concatenate([asked[np.isin(asked, history.index)], new])
            search.tell(history.of(_unique(known)))


def as_sampler(sampler: Sampler | SearchSampler, goal: Goal) -> Sampler:
    """Return a sampler unchanged, or a search sampler in a driver."""
    return SearchDriver(sampler, goal) if isinstance(sampler, SearchSampler) else sampler


def _unique(index: Index) -> Index:
    return index[np.sort(np.unique(index, return_index=True)[1])]


def _new(space: DesignSpace, index: Index, history: Observations) -> Index:
    """Return the allowed designs that were not evaluated yet, each once and in order."""
    index = _unique(index)
    return allowed(space, index[~np.isin(index, history.index)])


def _drawn(space: DesignSpace, random: np.random.Generator, history: Observations) -> Index:
    """Return new designs drawn at random; of a small space all remaining designs."""
    if len(space) <= 1 << 16:
        return _new(space, random.permutation(len(space)), history)
    return _new(space, space.drawn(random, 1 << 12), history)


def _observed(space: DesignSpace, goal: Goal, results: pl.LazyFrame, index: Index) -> Observations:
    shown = results
    if goal.priced is not None:  # designs are compared at the first of the prices asked for
        first = {n: values[0] for n, values in goal.priced.axes.items()}
        shown = repriced(results, priced(goal.priced, first))
    rows = answers_at(space, results, index, shown)
    met = ok = (rows["status"].cast(pl.String) == "ok").fill_null(value=False)
    if goal.where:
        condition = parsed(goal.where, f"where '{goal.where}'")
        met = ok & rows.select(condition.fill_null(value=False)).to_series()
    losses = minimised(rows, goal.objectives)
    known = ok.to_numpy() & ~np.isnan(losses).any(axis=1)
    tier = np.where(known, np.where(met.to_numpy(), MEETS, SIMULATED), IMPOSSIBLE)
    losses = np.where(known[:, np.newaxis], losses, np.inf)
    group = scenario_numbers(space, goal.given, index)
    return Observations(index, losses, tier, group, excess(goal.where or "", rows))


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


def initial_designs(
    space: DesignSpace, options: SearchOptions, count: int, random: np.random.Generator
) -> Index:
    """Return `count` designs that are spread evenly.

    A search with fewer points evaluates a prefix of the designs of one with more.
    """
    drawn = spread_evenly(space, random, count)
    if options.points < count:  # a prefix is spread evenly too
        drawn = np.random.default_rng(options.seed).permutation(drawn)
    return drawn
