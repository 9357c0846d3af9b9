"""The nsga2 sampler: a population of designs that evolves towards the front (see `_evolution`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
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

    def search(self, space: DesignSpace, goal: Goal) -> Search:  # noqa: ARG002 - told of losses alone
        """Return the first generation's search."""
        return _Evolution(self, space)


class _Evolution:
    """A population, and what it asks next."""

    def __init__(self, options: Nsga2, space: DesignSpace) -> None:
        self._space, self._count = space, options.population
        self._random = np.random.default_rng(options.seed)
        self._sizes = sizes_of(space)
        self._genes = Genes(self._sizes, ordered_of(space))
        self._alive: Told | None = None
        self._first = beginning(space, options, self._count, self._random)[: self._count]

    def ask(self) -> Index:
        """Return the children of the fitter half of many matches."""
        if self._alive is None:
            return self._first
        ranks, room = ranked(self._alive)
        parents = self._genes.unit(codes_of(self._space, self._alive.index))
        pairs = -(-self._count // 2)
        mothers = tournament(self._random, ranks, room, pairs)
        fathers = tournament(self._random, ranks, room, pairs)
        children = self._genes.children(self._random, parents[mothers], parents[fathers])
        return number_of(self._genes.codes(children), self._sizes)

    def tell(self, told: Told) -> None:
        """Let the fittest of parents and children live on, and all of the front."""
        alive = told if self._alive is None else self._alive.joined(told)
        ranks, room = ranked(alive)
        most = max(self._count, int((ranks == 0).sum()))
        self._alive = alive.take(survivors(ranks, room, most))


SAMPLER = Nsga2
