"""Bisection for the smallest deployment that does: fewest copies, whatever else a design chooses.

A design is all axes but the number of its copies, and of each combination of what is given (a
model, a load, a board) the smallest that does is wanted. What does with some copies does with more,
up to noise, so sizes are bisected for all designs at once: as soon as one does at a size, of the
others only smaller sizes are of interest. An answer is proved when every design has failed at the
largest size below it.

Bursts and routers can break the rule by a little. So near misses are tried with one and two copies
less too, and the answer with one more. What a simulator foresees, by a cheap model, says where to
begin, and what is hopeless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from sweeper.samplers import Results
from sweeper.samplers.random import in_blocks
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Batch, Index

AT_ONCE = 24
"""Designs tried in a round for one answer: the most promising; what does saves work on others."""

NEAR, FEWER = 1.1, 2
"""A deadline missed by a factor below this may be met with so many copies less, by luck."""

PROMISING = 1.5
"""What missed by less is tried before what was not tried yet."""

HOPELESS = 1.25
"""What is foreseen to miss by more is not tried, but for the best of an answer of such alone."""

EQUALS = 48
"""Designs of the size of the answer that are tried at most, to find the best among them."""

Factors = NDArray[np.float64]


class Judge(Protocol):
    """Says of designs which of them do."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What of a row it needs."""
        ...

    def misses(self, rows: pl.DataFrame) -> Factors:
        """Return by what factor each row misses what it must meet; at most 1 where it does."""
        ...

    def foreseen(self, batch: pa.RecordBatch) -> Factors:
        """Return the same before points are evaluated, at least, as far as is known; else 1."""
        ...


@dataclass(frozen=True)
class Fewest:
    """Bisects the copies of all designs of an answer together.

    Args:
        axis: how many copies there are; its values ascend.
        devices: a derived column that grows with it: the boards of all copies.
        given: columns, of each combination of whose values an answer is wanted.
        judge: which rows do.
    """

    axis: str
    devices: str
    given: tuple[str, ...]
    judge: Judge

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield rounds of designs to try, until the smallest of each answer is proved."""
        tried = self._untried(space)
        while len(probes := tried.next()):
            numbers = tried.number[probes[:, 0], probes[:, 1]]
            yield in_blocks(numbers)
            tried.learn(probes, self._misses(space, results(), numbers))

    def size(self, space: DesignSpace) -> int:
        """Return about how many points will be picked: most designs fail once."""
        return space.size // len(space.axes[self.axis])

    def _untried(self, space: DesignSpace) -> Tried:
        """Return the designs and sizes of a space, none of them tried."""
        values = len(space.axes[self.axis])
        factors = [i for i, f in enumerate(space.factors) if self.axis in f.columns]
        step = math.prod(len(f) for f in space.factors[factors[0] + 1 :])
        every = np.arange(space.size // values, dtype=np.int64)
        first = every // step * (step * values) + every % step
        number = first[:, np.newaxis] + step * np.arange(values)
        kept = space.kept(number.ravel())
        allowed = np.ones(number.shape, bool) if kept is None else kept.reshape(number.shape)
        number, allowed = number[allowed.any(axis=1)], allowed[allowed.any(axis=1)]
        sizes = space.derive(number.ravel())[self.devices].to_numpy(zero_copy_only=False)
        sizes = np.where(allowed, sizes.reshape(number.shape).astype(np.float64), math.inf)
        given = space.points(number[:, 0]).select(self.given)
        group = given.with_columns(__group=pl.struct(self.given).rank("dense"))["__group"]
        tried = Tried(number, sizes, group.to_numpy().astype(np.int64) - 1)
        self._look_ahead(space, tried)
        return tried

    def _look_ahead(self, space: DesignSpace, tried: Tried) -> None:
        """Tell what is foreseen of designs at their largest size, half of that, and so on."""
        designs = np.arange(len(tried.number))
        place = np.isfinite(tried.sizes).sum(axis=1) - 1
        while len(designs):
            numbers = tried.number[designs, place]
            order = np.argsort(numbers)
            factors = np.empty(len(numbers))
            factors[order] = self.judge.foreseen(space.batch(numbers[order]))
            tried.foresee(designs, place, factors)
            further = (factors <= HOPELESS) & (place > 0)
            designs, place = designs[further], (place[further] + 1) // 2 - 1
        tried.drop_hopeless()

    def _misses(self, space: DesignSpace, results: pl.LazyFrame, numbers: Index) -> Factors:
        """Return by what factor each point misses; infinity if it cannot be built."""
        rows = results.select(*space.axes, "status", *self.judge.columns).collect()
        index = space.index_among(rows)
        order = np.argsort(index)
        place = order[np.clip(np.searchsorted(index[order], numbers), 0, len(order) - 1)]
        factors = np.where(rows["status"].cast(pl.String) == "ok", self.judge.misses(rows), np.inf)
        return np.where(index[place] == numbers, factors[place], np.inf)


class Tried:
    """What is known of designs (rows) at each number of their copies (columns).

    Args:
        number: the number of each point.
        sizes: its devices; infinity where it is not allowed.
        group: of each design, which answer it may be.
    """

    def __init__(self, number: Index, sizes: Factors, group: Index) -> None:
        self.number, self.sizes, self.group = number, sizes, group
        self.miss = np.full(number.shape, np.nan)
        answers = int(group.max()) + 1 if len(group) else 0
        self.best = np.full(answers, np.inf)
        self._compared = np.zeros(answers, bool)
        self._foreseen = np.full(number.shape, np.nan)

    def foresee(self, designs: Index, place: Index, factors: Factors) -> None:
        """Take in by what factors designs will miss at least."""
        self._foreseen[designs, place] = factors

    def drop_hopeless(self) -> None:
        """Forget what will miss, and all of its smaller sizes; of an answer of such, keep one."""
        places = np.arange(self.sizes.shape[1])
        last = np.where(self._foreseen > HOPELESS, places, -1).max(axis=1, initial=-1)
        kept = np.where(places <= last[:, np.newaxis], np.inf, self.sizes)
        least = np.nanmin(self._foreseen, axis=1, initial=np.inf)
        for answer in range(len(self.best)):
            mine = np.flatnonzero(self.group == answer)
            if np.isinf(kept[mine]).all():
                nearest = mine[np.argmin(least[mine])]
                place = np.isfinite(self.sizes[nearest]).sum() - 1
                kept[nearest, place] = self.sizes[nearest, place]
        self.sizes = kept

    def learn(self, probes: Index, factors: Factors) -> None:
        """Take in by what factors some designs missed; what cannot be built never can."""
        for (design, place), factor in zip(probes.tolist(), factors.tolist(), strict=True):
            self.miss[design, place] = factor
            if factor <= 1.0:
                answer = self.group[design]
                self.best[answer] = min(self.best[answer], self.sizes[design, place])
            elif factor == math.inf:
                self.miss[design] = math.inf

    def next(self) -> Index:
        """Return what to try next for every answer, as pairs of a design and a place."""
        found = [self._next_of(answer) for answer in range(len(self.best))]
        return np.concatenate(found) if found else np.empty((0, 2), np.int64)

    def _next_of(self, answer: int) -> Index:
        for step in (self._bisection, self._near_misses, self._equals):
            if len(probes := step(answer)):
                return probes
        return np.empty((0, 2), np.int64)

    def _bisection(self, answer: int) -> Index:
        """Return the most promising designs at a size between what failed and the best so far."""
        fails = self.miss > 1.0
        places = np.arange(self.sizes.shape[1])
        failed = np.where(fails, places, -1).max(axis=1, initial=-1)
        smaller = self.sizes < self.best[answer]
        later = smaller & (places > failed[:, np.newaxis]) & (self.group == answer)[:, np.newaxis]
        open_ = np.flatnonzero(later.any(axis=1))
        if not len(open_):
            return np.empty((0, 2), np.int64)
        ahead = np.where(later[open_], self.sizes[open_], np.nan)
        low, high = np.nanmin(ahead), np.nanmax(ahead)
        target = max(low, math.floor(math.sqrt(low * high)))
        within = np.where(ahead <= target, ahead, -1.0)
        place = within.shape[1] - 1 - np.argmax(within[:, ::-1] == within.max(1)[:, None], axis=1)
        can = within.max(axis=1) > 0.0
        open_, place = open_[can], place[can]
        return np.column_stack((open_, place))[self._promising(open_)[:AT_ONCE]]

    def _promising(self, designs: Index) -> Index:
        """Return an order of designs: near misses, then untried ones as foreseen, then the rest."""
        miss = np.nanmin(self.miss[designs], axis=1, initial=np.inf)
        places = np.where(np.isfinite(self._foreseen[designs]), self.sizes[designs], np.inf)
        hopeful = places.min(axis=1, initial=np.inf)  # the smallest size that is not hopeless
        untried = np.isnan(self.miss[designs]).all(axis=1)
        rank = np.where(untried, 1, np.where(miss < PROMISING, 0, 2))
        order: Index = np.lexsort((np.where(untried, hopeful, miss), rank))
        return order

    def _near_misses(self, answer: int) -> Index:
        """Return designs that nearly did, with fewer copies."""
        near = (self.miss > 1.0) & (self.miss < NEAR) & (self.group == answer)[:, np.newaxis]
        found = {
            (design, place - less)
            for design, place in np.argwhere(near).tolist()
            for less in range(1, FEWER + 1)
            if place >= less and self._is_open(design, place - less)
        }
        return np.array(sorted(found), np.int64).reshape(-1, 2)

    def _equals(self, answer: int) -> Index:
        """Return once, of designs as large as the best, the promising; and that with one more."""
        if self._compared[answer] or self.best[answer] == np.inf:
            return np.empty((0, 2), np.int64)
        self._compared[answer] = True
        mine = (self.group == answer)[:, np.newaxis]
        same = np.argwhere(mine & (self.sizes == self.best[answer]) & np.isnan(self.miss))
        order = self._promising(same[:, 0])[:EQUALS]
        does = np.argwhere(mine & (self.sizes == self.best[answer]) & (self.miss <= 1.0))
        more = [(d, p + 1) for d, p in does.tolist() if p + 1 < self.sizes.shape[1]]
        larger = [pair for pair in more if self._is_open(*pair)][:EQUALS]
        return np.concatenate([same[order], np.array(larger, np.int64).reshape(-1, 2)])

    def _is_open(self, design: int, place: int) -> bool:
        return bool(np.isfinite(self.sizes[design, place]) and np.isnan(self.miss[design, place]))
