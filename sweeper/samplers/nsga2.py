"""The nsga2 sampler: a population of designs evolves towards the Pareto front.

Deb, Pratap, Agarwal and Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II"
(2002), with simulated binary crossover and polynomial mutation (Deb and Agrawal, 1995), at pymoo's
settings. A gene in [0, 1) encodes one value of an axis: ordered values are crossed as numbers and
mutated by steps, unordered ones are exchanged and redrawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from sweeper.query.pareto_kernel import Matrix
from sweeper.samplers import Goal, Observations, Search
from sweeper.samplers._search_driver import (
    SearchOptions,
    codes_of,
    initial_designs,
    number_of,
    ordered_of,
    ranked,
    sizes_of,
)
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index

_ETA_CROSSOVER, _ETA_MUTATION = 15.0, 20.0
"""Distribution indices: the larger, the nearer offspring are to their parents."""
_CROSSOVER, _GENE_CROSSOVER = 0.9, 0.5
"""Probability that a pair is crossed, and that a gene of a crossed pair is."""
_STEP = 0.5
"""Probability that the mutation of an ordered value is a single step."""


@dataclass(frozen=True)
class Nsga2(SearchOptions):
    """An evolutionary search.

    Args:
        points: looked at in all.
        seed: of what is drawn.
        start: a Parquet or CSV file of designs to begin with, such as an earlier `front.parquet`.
        across: worst or mean: how designs count over all scenarios; empty: each has its own front.
        population: offspring per generation, and survivors of it; the whole front survives.
    """

    population: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population < 2:
            raise UserError(f"sampler.population={self.population}: two designs have children")

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search at its first generation."""
        return _Evolution(self, space, goal.given)


class _Evolution:
    """A population, and the offspring to evaluate next."""

    def __init__(self, options: Nsga2, space: DesignSpace, given: Sequence[str]) -> None:
        self._space, self._count = space, options.population
        self._random = np.random.default_rng(options.seed)
        self._genes = Genes(sizes_of(space), ordered_of(space))
        factors = enumerate(space.factors)
        self._given = [i for i, factor in factors if factor.columns.keys() <= set(given)]
        self._population: Observations | None = None
        first = initial_designs(space, options, self._count, self._random)
        self._first = first[: self._count]

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
        parents = self._genes.unit(codes)
        offspring = self._genes.offspring(self._random, parents[first], parents[second])
        offspring_codes = self._genes.codes(offspring)
        offspring_codes[:, self._given] = np.tile(scenarios, (2, 1))
        return number_of(offspring_codes, self._genes.sizes)

    def tell(self, observed: Observations) -> None:
        """Keep the best of parents and offspring, and the whole front."""
        if self._population is not None:
            observed = self._population.joined(observed)
        ranks, crowding = ranked(observed)
        count = max(self._count, int((ranks == 0).sum()))
        self._population = observed.take(survivors(ranks, crowding, count))

    def _scenarios(self, pairs: int) -> Ints:
        """Return the codes of a scenario for each pair: each scenario has a front of its own."""
        sizes = self._genes.sizes[self._given]
        scenarios = math.prod(sizes.tolist())
        drawn = self._random.choice(scenarios, min(pairs, scenarios), replace=False)
        places = np.unravel_index(np.resize(drawn, pairs), (*sizes, 1))
        return np.stack(places, axis=1)[:, :-1]


@dataclass(frozen=True)
class Genes:
    """What the genes of a design encode.

    Args:
        sizes: number of values of each gene; 0: the gene is a real number itself.
        ordered: whether its values are ordered.
    """

    sizes: Ints
    ordered: NDArray[np.bool_]

    @classmethod
    def real(cls, count: int) -> Genes:
        """Return genes that are real numbers."""
        return cls(np.zeros(count, np.int64), np.ones(count, bool))

    def codes(self, unit: Matrix) -> Ints:
        """Return the value that each gene encodes."""
        return np.minimum((unit * self.sizes).astype(np.int64), self.sizes - 1)

    def unit(self, codes: Ints) -> Matrix:
        """Return genes that encode values."""
        return (codes + 0.5) / self.sizes

    def offspring(self, random: np.random.Generator, first: Matrix, second: Matrix) -> Matrix:
        """Return two offspring of each pair of parents: all first ones, then all second ones."""
        unit = self._mutated(random, self._crossed(random, first, second))
        sizes = np.maximum(self.sizes, 1)
        middle = (np.minimum(np.floor(unit * sizes), sizes - 1) + 0.5) / sizes
        return np.where(self.sizes > 0, middle, unit)

    def _crossed(self, random: np.random.Generator, first: Matrix, second: Matrix) -> Matrix:
        """Return pairs after simulated binary crossover; unordered values are exchanged."""
        shape = first.shape
        pair, gene = random.random((shape[0], 1)), random.random(shape)
        crossed = (pair < _CROSSOVER) & (gene < _GENE_CROSSOVER)
        low, high = np.minimum(first, second), np.maximum(first, second)
        distance = np.maximum(high - low, 1e-14)
        u, power = random.random(shape), 1.0 / (_ETA_CROSSOVER + 1.0)

        def spread(to_bound: Floats) -> Floats:
            beta = 1.0 + 2.0 * to_bound / distance
            alpha = 2.0 - beta ** -(_ETA_CROSSOVER + 1.0)
            inside = (u * alpha) ** power
            outside = (1.0 / np.maximum(2.0 - u * alpha, 1e-300)) ** power
            result: Floats = np.where(u <= 1.0 / alpha, inside, outside)
            return result

        middle = (low + high) / 2.0
        one = np.clip(middle - spread(low) * distance / 2.0, 0.0, 1.0)
        two = np.clip(middle + spread(1.0 - high) * distance / 2.0, 0.0, 1.0)
        swapped = random.random(shape) < 0.5
        one, two = np.where(swapped, two, one), np.where(swapped, one, two)
        blended = crossed & self.ordered & (high - low > 1e-14)
        exchanged = crossed & ~self.ordered & swapped
        return np.concatenate(
            [
                np.where(blended, one, np.where(exchanged, second, first)),
                np.where(blended, two, np.where(exchanged, first, second)),
            ]
        )

    def _mutated(self, random: np.random.Generator, unit: Matrix) -> Matrix:
        """Return genes of which, per row, one that has several values is changed on average."""
        shape = unit.shape
        chosen = random.random(shape) < 1.0 / max(int((self.sizes != 1).sum()), 1)
        u, power = random.random(shape), 1.0 / (_ETA_MUTATION + 1.0)
        below = 2.0 * u + (1.0 - 2.0 * u) * (1.0 - unit) ** (_ETA_MUTATION + 1.0)
        above = 2.0 * (1.0 - u) + 2.0 * (u - 0.5) * unit ** (_ETA_MUTATION + 1.0)
        moved = np.where(u < 0.5, below**power - 1.0, 1.0 - above**power)
        steps = random.choice([-1.0, 1.0], shape) * random.geometric(_STEP, shape)
        stepped = unit + steps / np.maximum(self.sizes, 1)
        drawn = random.random(shape)
        in_values = np.where(self.ordered, stepped, drawn)
        changed = np.where(self.sizes > 0, in_values, unit + moved)
        return np.clip(np.where(chosen, changed, unit), 0.0, 1.0)


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
