"""The nsga2 sampler: a population of designs that evolves towards the front (see `_evolution`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.samplers import Goal, Search, Told
from sweeper.samplers._evolution import Genes, survivors, tournament
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
from sweeper.space.spans import Index


@dataclass(frozen=True)
class Nsga2(Options):
    """An evolutionary search.

    Args:
        points: looked at in all.
        seed: of what is drawn.
        start: a Parquet or CSV file of designs to begin with, such as an earlier `front.parquet`.
        across: worst or mean: how designs count over all scenarios; empty: each has its own front.
        population: designs that are born at a time, and live; of the front all live on.
    """

    population: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population < 2:
            raise UserError(f"sampler.population={self.population}: two designs have children")

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return the first generation's search."""
        return _Evolution(self, space, goal.given)


class _Evolution:
    """A population, and what it asks next."""

    def __init__(self, options: Nsga2, space: DesignSpace, given: Sequence[str]) -> None:
        self._space, self._count = space, options.population
        self._random = np.random.default_rng(options.seed)
        self._sizes = sizes_of(space)
        self._genes = Genes(self._sizes, ordered_of(space))
        factors = enumerate(space.factors)
        self._given = [i for i, factor in factors if factor.columns.keys() <= set(given)]
        self._alive: Told | None = None
        self._first = beginning(space, options, self._count, self._random)[: self._count]

    def ask(self) -> Index:
        """Return the children of the fitter half of many matches, as many for each scenario."""
        if self._alive is None:
            return self._first
        ranks, room = ranked(self._alive)
        codes = codes_of(self._space, self._alive.index)
        parents, asked = self._genes.unit(codes), codes[:, self._given]
        pairs = -(-self._count // 2)
        mothers, fathers = (tournament(self._random, ranks, room, pairs) for _ in range(2))
        dealt = self._dealt(pairs)
        for scenario in np.unique(dealt, axis=0) if self._given else ():
            theirs = np.flatnonzero((asked == scenario).all(axis=1))
            mine = np.flatnonzero((dealt == scenario).all(axis=1))
            if len(theirs):
                fit = tournament(self._random, ranks[theirs], room[theirs], len(mine))
                mothers[mine] = theirs[fit]
        children = self._genes.children(self._random, parents[mothers], parents[fathers])
        born = self._genes.codes(children)
        born[:, self._given] = np.tile(dealt, (2, 1))
        return number_of(born, self._sizes)

    def tell(self, told: Told) -> None:
        """Let the fittest of parents and children live on, and all of the front."""
        alive = told if self._alive is None else self._alive.joined(told)
        ranks, room = ranked(alive)
        most = max(self._count, int((ranks == 0).sum()))
        self._alive = alive.take(survivors(ranks, room, most))

    def _dealt(self, pairs: int) -> Ints:
        """Return a scenario for each pair: each has a front of its own to find."""
        sizes = self._sizes[self._given]
        scenarios = math.prod(sizes.tolist())
        drawn = self._random.choice(scenarios, min(pairs, scenarios), replace=False)
        places = np.unravel_index(np.resize(drawn, pairs), (*sizes, 1))
        return np.stack(places, axis=1)[:, :-1]


SAMPLER = Nsga2
