"""Samplers pick points in rounds; they read results from the store, which is the only memory.

A grid is one endless lazy round; a search is one round per generation. A sampler's name is the name
of its file, and its fields are its options on the command line: `grid`, `random`, `nsga2`. One that
has `search` in place of `rounds` asks for designs and is told of them, as `_search` says. The
bisection in `_capacity` is not chosen by name but by an axis that asks for a capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl

from simulators.core.folder import Folder
from simulators.core.jit import Floats, Ints
from simulators.core.modules import load_from
from sweeper.query.pareto_kernel import Matrix
from sweeper.space.design_space import DesignSpace
from sweeper.space.objectives import Objectives
from sweeper.space.spans import Batch, Index

SAMPLERS = Folder("sampler", "samplers", ".py", package="sweeper")

Results = Callable[[], pl.LazyFrame]


class Sampler(Protocol):
    """Picks the points of a space that are worth evaluating."""

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield rounds of batches; a round sees the results of those before it."""
        ...

    def size(self, space: DesignSpace) -> int:
        """Return how many points will be picked, constraints apart."""
        ...


MEETS, SIMULATED, IMPOSSIBLE = 0, 1, 2
"""What came of a design: it meets the space's condition, it does not, or it cannot be or failed."""


@dataclass(frozen=True)
class Told:
    """What came of designs."""

    index: Index  # their numbers
    losses: Matrix  # a column per objective, to be made small; infinite where nothing is known
    tier: Ints  # MEETS, SIMULATED or IMPOSSIBLE
    group: Ints  # designs of one scenario are compared, others are not
    excess: Floats  # by what powers of e they are beyond the limits that the condition sets

    def take(self, which: Index) -> Told:
        """Return some of them."""
        return Told(*(getattr(self, f.name)[which] for f in fields(self)))

    def joined(self, other: Told | None) -> Told:
        """Return these and others after them, each design once."""
        if other is None:
            return self
        new = other.take(np.flatnonzero(~np.isin(other.index, self.index)))
        names = (f.name for f in fields(self))
        return Told(*(np.concatenate([getattr(self, n), getattr(new, n)]) for n in names))


@dataclass(frozen=True)
class Goal:
    """What a space wants, and in which prices."""

    objectives: Objectives
    where: str | None = None
    given: tuple[str, ...] = ()
    priced: DesignSpace | None = None


class Search(Protocol):
    """Asks for designs, and is told what came of them."""

    def ask(self) -> Index:
        """Return numbers of designs to try next; known and forbidden ones among them are no harm.

        None, if there is nothing left to ask.
        """
        ...

    def tell(self, told: Told) -> None:
        """Learn what came of designs that were asked for, or drawn because nothing new was."""
        ...


@runtime_checkable
class Searches(Protocol):
    """A sampler that searches: it looks at results by being told of them."""

    points: int
    across: str  # over all given scenarios designs count by their worst or mean; else each alone

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search of a space, from its beginning."""
        ...

    def size(self, space: DesignSpace) -> int:
        """Return how many points will be picked at most, constraints apart."""
        ...


@runtime_checkable
class Begins(Protocol):
    """A search that lets the runs of a simulator begin where it is, to see how they do."""

    def begins(self, space: DesignSpace) -> bool:
        """Return whether it does in a space: they go on at less cost where they have begun."""
        ...


def names() -> tuple[str, ...]:
    """Return the samplers there are."""
    return SAMPLERS.names()


def options_of(name: str) -> type:
    """Return the dataclass of a sampler: its fields are its options.

    Raises:
        UnknownNameError: there is no such sampler.
        UserError: its file defines no `SAMPLER`.
    """
    kind: type = load_from(SAMPLERS, name, "SAMPLER")
    return kind


def load_sampler(name: str, **options: Any) -> Sampler | Searches:
    """Return the sampler of that name with these options."""
    sampler: Sampler | Searches = options_of(name)(**options)
    return sampler
