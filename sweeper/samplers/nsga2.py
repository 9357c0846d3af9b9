"""The nsga2 sampler: a population of designs evolves towards the Pareto front.

Deb, Pratap, Agarwal and Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II"
(2002), with pymoo's operators. A gene is the code of a value: ordered values are crossed and
mutated as numbers and rounded, unordered ones are exchanged and redrawn. Needs the extra `search`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from sweeper.extras import load_extra
from sweeper.samplers import Goal, Observations, Search
from sweeper.samplers._search_driver import (
    SearchOptions,
    codes_of,
    initial_designs,
    ordered_of,
    ranked,
)
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index, number_of

_ETA = 3.0  # distribution index of pymoo for integers: the larger, the nearer to the parents
_CROSSED = 0.5  # probability that a gene of a pair is crossed


@dataclass(frozen=True)
class Nsga2(SearchOptions):
    """An evolutionary search.

    Args:
        points: number of points.
        seed: seed of random numbers.
        population: number of offspring and of survivors per generation; the whole front survives.
    """

    population: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population < 2:
            raise UserError(
                f"sampler.population={self.population}: a population has at least two designs"
            )

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search at its first generation."""
        return _Evolution(self, space, goal.given)


class _Evolution:
    """A population, and the offspring to evaluate next."""

    def __init__(self, options: Nsga2, space: DesignSpace, given: Sequence[str]) -> None:
        self._space, self._count = space, options.population
        self._random = np.random.default_rng(options.seed)
        self._sizes, self._ordered = space.sizes, ordered_of(space)
        self._crossover = load_extra("pymoo.operators.crossover.sbx", "sampler=nsga2").cross_sbx
        self._mutation = load_extra("pymoo.operators.mutation.pm", "sampler=nsga2").mut_pm
        factors = enumerate(space.factors)
        self._given = [i for i, factor in factors if factor.columns.keys() <= set(given)]
        self._population: Observations | None = None
        self._first = initial_designs(space, options, self._count, self._random)

    def ask(self) -> Index:
        """Return the offspring of tournament winners, equally many for each scenario."""
        if self._population is None:
            return self._first
        ranks, crowding = ranked(self._population)
        codes = codes_of(self._space, self._population.index)
        pairs = -(-self._count // 2)
        first, second = (tournament(self._random, ranks, crowding, pairs) for _ in range(2))
        scenarios = self._scenarios(pairs)
        for scenario in np.unique(scenarios, axis=0) if self._given else ():
            candidates = np.flatnonzero((codes[:, self._given] == scenario).all(axis=1))
            places = np.flatnonzero((scenarios == scenario).all(axis=1))
            if len(candidates):
                winners = tournament(
                    self._random, ranks[candidates], crowding[candidates], len(places)
                )
                first[places] = candidates[winners]
        offspring = self._offspring(np.stack([codes[first], codes[second]]).astype(np.float64))
        offspring[:, self._given] = np.tile(scenarios, (2, 1))
        return number_of(offspring.T, self._sizes)

    def tell(self, observed: Observations) -> None:
        """Keep the best of parents and offspring, and the whole front."""
        if self._population is not None:
            observed = self._population.with_new(observed)
        ranks, crowding = ranked(observed)
        count = max(self._count, int((ranks == 0).sum()))
        self._population = observed.take(survivors(ranks, crowding, count))

    def _offspring(self, parents: Floats) -> Ints:
        """Return two offspring per pair of parents: the first of all pairs, then the second."""
        _, pairs, genes = parents.shape
        random, low, high = self._random, np.zeros(genes), self._sizes - 1.0
        eta, half = np.full((pairs, 1), _ETA), np.full((pairs, 1), 0.5)
        blended = self._crossover(parents, low, high, eta, _CROSSED, half, random_state=random)
        is_exchanged = random.random((pairs, genes)) < _CROSSED
        exchanged = np.where(is_exchanged, parents[::-1], parents)
        crossed = np.where(self._ordered, blended, exchanged).reshape(-1, genes)
        share = 1.0 / max(int((self._sizes > 1).sum()), 1)  # one gene of a design, on average
        eta, shares = np.full(2 * pairs, _ETA), np.full(2 * pairs, share)
        moved = self._mutation(crossed, low, high, eta, shares, False, random_state=random)
        is_redrawn = random.random(crossed.shape) < share
        redrawn = np.where(is_redrawn, random.integers(self._sizes, size=crossed.shape), crossed)
        return np.rint(np.where(self._ordered, moved, redrawn)).astype(np.int64)

    def _scenarios(self, pairs: int) -> Ints:
        """Return the codes of a scenario for each pair; every scenario has its own front."""
        sizes = self._sizes[self._given]
        scenarios = math.prod(sizes.tolist())
        drawn = self._random.choice(scenarios, min(pairs, scenarios), replace=False)
        places = np.unravel_index(np.resize(drawn, pairs), (*sizes, 1))
        return np.stack(places, axis=1)[:, :-1]


def tournament(random: np.random.Generator, ranks: Ints, crowding: Floats, count: int) -> Ints:
    """Return the winners of `count` binary tournaments: lower rank, then less crowded."""
    rounds = -(-2 * count // len(ranks))
    rows = np.concatenate([random.permutation(len(ranks)) for _ in range(rounds)])
    one, two = rows[:count], rows[count : 2 * count]
    less_crowded = (ranks[one] == ranks[two]) & (crowding[one] >= crowding[two])
    winners: Ints = np.where((ranks[one] < ranks[two]) | less_crowded, one, two)
    return winners


def survivors(ranks: Ints, crowding: Floats, count: int) -> Ints:
    """Return the `count` best rows, by rank and then by crowding distance."""
    return np.lexsort((-crowding, ranks))[:count]


SAMPLER = Nsga2
