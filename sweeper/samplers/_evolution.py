"""NSGA-II: the better half of parents and children lives on, by layers of the front and room.

Deb, Pratap, Agarwal and Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II"
(2002), with simulated binary crossover and polynomial mutation (Deb and Agrawal, 1995), at the
settings that pymoo has. Genes are numbers in [0, 1): as they are, or as one of so many values in
order or without one; of values, those in order move by steps, others are exchanged or drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints
from sweeper.query.pareto_kernel import Matrix

_ETA_CROSSOVER, _ETA_MUTATION = 15.0, 20.0
"""How near children are to their parents; the larger the nearer."""
_CROSSED, _GENE_CROSSED = 0.9, 0.5
"""Share of the pairs whose genes are crossed, and of the genes of such a pair."""
_STEP = 0.5
"""Chance that a mutated value in order moves one step; else it moves farther."""


@dataclass(frozen=True)
class Genes:
    """What genes stand for.

    Args:
        sizes: values of each; 0: it is the number itself.
        ordered: whether its values are in order.
    """

    sizes: Ints
    ordered: NDArray[np.bool_]

    @classmethod
    def real(cls, count: int) -> Genes:
        """Return genes that are numbers."""
        return cls(np.zeros(count, np.int64), np.ones(count, bool))

    def codes(self, unit: Matrix) -> Ints:
        """Return which of its values each gene stands for."""
        return np.minimum((unit * self.sizes).astype(np.int64), self.sizes - 1)

    def unit(self, codes: Ints) -> Matrix:
        """Return genes that stand for values."""
        return (codes + 0.5) / self.sizes

    def _settled(self, unit: Matrix) -> Matrix:
        """Return genes moved to the middle of the value they stand for."""
        sizes = np.maximum(self.sizes, 1)
        middle = (np.minimum(np.floor(unit * sizes), sizes - 1) + 0.5) / sizes
        return np.where(self.sizes > 0, middle, unit)

    def children(self, random: np.random.Generator, mothers: Matrix, fathers: Matrix) -> Matrix:
        """Return two children of each pair, one below the other."""
        sons, daughters = self._crossed(random, mothers, fathers)
        both = np.concatenate([sons, daughters])
        return self._settled(self._mutated(random, both))

    def _crossed(
        self, random: np.random.Generator, mothers: Matrix, fathers: Matrix
    ) -> tuple[Matrix, Matrix]:
        """Return the genes of pairs crossed: numbers in between and beyond, words exchanged."""
        shape = mothers.shape
        crossed = (random.random((shape[0], 1)) < _CROSSED) & (random.random(shape) < _GENE_CROSSED)
        low, high = np.minimum(mothers, fathers), np.maximum(mothers, fathers)
        apart = np.maximum(high - low, 1e-14)
        u, power = random.random(shape), 1.0 / (_ETA_CROSSOVER + 1.0)

        def spread(room: Floats) -> Floats:
            beta = 1.0 + 2.0 * room / apart
            alpha = 2.0 - beta ** -(_ETA_CROSSOVER + 1.0)
            inside = (u * alpha) ** power
            outside = (1.0 / np.maximum(2.0 - u * alpha, 1e-300)) ** power
            result: Floats = np.where(u <= 1.0 / alpha, inside, outside)
            return result

        middle = (low + high) / 2.0
        one = np.clip(middle - spread(low) * apart / 2.0, 0.0, 1.0)
        two = np.clip(middle + spread(1.0 - high) * apart / 2.0, 0.0, 1.0)
        swapped = random.random(shape) < 0.5
        one, two = np.where(swapped, two, one), np.where(swapped, one, two)
        blended = crossed & self.ordered & (high - low > 1e-14)
        exchanged = crossed & ~self.ordered & swapped
        sons = np.where(blended, one, np.where(exchanged, fathers, mothers))
        daughters = np.where(blended, two, np.where(exchanged, mothers, fathers))
        return sons, daughters

    def _mutated(self, random: np.random.Generator, unit: Matrix) -> Matrix:
        """Return genes of which one in each row, of those that can be, on average is changed."""
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


def tournament(random: np.random.Generator, ranks: Ints, room: Floats, count: int) -> Ints:
    """Return the winners of so many matches of two: the better layer, then more room."""
    rows = np.concatenate(
        [random.permutation(len(ranks)) for _ in range(-(-2 * count // len(ranks)))]
    )
    one, two = rows[:count], rows[count : 2 * count]
    better = (ranks[one] < ranks[two]) | ((ranks[one] == ranks[two]) & (room[one] >= room[two]))
    winners: Ints = np.where(better, one, two)
    return winners


def survivors(ranks: Ints, room: Floats, count: int) -> Ints:
    """Return so many rows: whole layers from the front on, of the last those with most room."""
    return np.lexsort((-room, ranks))[:count]
