"""The local sampler: designs of the front so far are moved along their axes, in shrinking steps.

Custódio, Madeira, Vaz and Vicente, "Direct multisearch for multiobjective optimization" (2011): the
neighbours of a design of the front are polled; where none joins the front its steps are halved, and
a design whose steps of one value have failed is settled. A first few designs are spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.samplers import Goal, Search, Told
from sweeper.samplers._search import (
    Options,
    beginning,
    codes_of,
    number_of,
    ordered_of,
    ranked,
    sizes_of,
)
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index, Mask

_POLLED = 8
"""Designs of the front whose neighbours are asked for at a time."""


@dataclass(frozen=True)
class Local(Options):
    """A refinement of designs step by step.

    Args:
        points: looked at in all.
        seed: of what is drawn.
        start: a Parquet or CSV file of designs to begin with, such as an earlier `front.parquet`.
        across: worst or mean: how designs count over all scenarios; empty: each has its own front.
        first: designs spread evenly to begin with, besides those of `start`.
    """

    first: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < 1:
            raise UserError(f"sampler.first={self.first}: a search begins with one design at least")

    def search(self, space: DesignSpace, goal: Goal) -> Search:  # noqa: ARG002 - told of losses alone
        """Return a search that has looked at nothing."""
        return _Refinement(self, space)


class _Refinement:
    """What was looked at, and the steps in which each design of the front is moved next."""

    def __init__(self, options: Local, space: DesignSpace) -> None:
        self._space, self._sizes, self._ordered = space, sizes_of(space), ordered_of(space)
        random = np.random.default_rng(options.seed)
        self._first = beginning(space, options, options.first, random)
        self._told: Told | None = None
        self._steps: dict[int, int] = {}
        self._polled: dict[int, Index] = {}
        self._most = max(1, int(self._sizes.max()) // 4)

    def ask(self) -> Index:
        """Return neighbours of the designs of the front with the longest steps left."""
        if self._told is None:
            return self._first
        ranks, room = ranked(self._told)
        front = np.flatnonzero(ranks == 0)
        steps = np.array([self._steps.get(n, self._most) for n in self._told.index[front].tolist()])
        front, steps = front[steps > 0], steps[steps > 0]
        order = np.lexsort((-room[front], -steps))[:_POLLED]
        polled = self._told.index[front[order]]
        near = (
            number_of(_neighbours(codes, step, self._sizes, self._ordered), self._sizes)
            for codes, step in zip(
                codes_of(self._space, polled), steps[order].tolist(), strict=True
            )
        )
        self._polled = dict(zip(polled.tolist(), near, strict=True))
        return np.concatenate([np.empty(0, np.int64), *self._polled.values()])

    def tell(self, told: Told) -> None:
        """Keep what is on the front; halve the steps of designs none of whose neighbours is new."""
        before = self._told
        known = told if before is None else before.joined(told)
        self._told = known.take(np.flatnonzero(ranked(known)[0] == 0))
        new = self._told.index
        if before is not None:
            new = new[~np.isin(new, before.index)]
        for number, neighbours in self._polled.items():
            step = self._steps.get(number, self._most)
            succeeded = np.isin(neighbours, new).any()
            self._steps[number] = step if succeeded and step > 1 else step // 2
        self._polled = {}


def _neighbours(codes: Ints, step: int, sizes: Ints, ordered: Mask) -> Ints:
    """Return a design moved along each axis: by a step up and down, to every other word."""
    moved = []
    for axis, size in enumerate(sizes.tolist()):
        here = int(codes[axis])
        near = {max(here - step, 0), min(here + step, size - 1)} if ordered[axis] else range(size)
        for code in sorted(set(near) - {here}):
            other = codes.copy()
            other[axis] = code
            moved.append(other)
    return np.array(moved, np.int64).reshape(-1, len(sizes))


SAMPLER = Local
