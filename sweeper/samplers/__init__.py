"""Samplers pick points in rounds; they read results from the store, which is the only memory.

A sampler is chosen by the name of its file (`grid`, `random`, `nsga2`); its fields are its options
on the command line. A `SearchSampler` has `search` in place of `rounds` and is run by
`_search_driver`. The samplers of `_axis_searches` and `_min_replicas` are not chosen by name: an
axis of the space or a question asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import polars as pl

from simulators.core.folder import Folder, load_from
from simulators.core.jit import Floats, Ints
from sweeper.query.fronts import Matrix
from sweeper.space.design_space import DesignSpace, Objectives
from sweeper.space.points import Batch, Index, Mask

SAMPLERS = Folder("sampler", "samplers", ".py", package="sweeper")

Results = Callable[[], pl.LazyFrame]


class Sampler(Protocol):
    """Picks the points of a space to evaluate."""

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield rounds of batches; `results` holds the rows of all earlier rounds."""

    def size(self, space: DesignSpace) -> int:
        """Return the number of points that are picked, before constraints."""


class Round(list[Batch]):
    """The batches of one round of a search, and the expected number of points of later rounds."""

    def __init__(self, batches: Iterable[Batch], later: int) -> None:
        super().__init__(batches)
        self.later = later


MEETS, SIMULATED, IMPOSSIBLE = 0, 1, 2
"""Tiers of designs: the condition is met; simulated, but not met; infeasible or failed."""


class RowTable:
    """Base class of a dataclass whose fields are columns of equal length."""

    def take(self, rows: Index | Mask) -> Self:
        """Return some rows."""
        return type(self)(*(column[rows] for column in vars(self).values()))

    def joined(self, other: Self) -> Self:
        """Return these rows and then those of `other`."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(np.concatenate(pair) for pair in both))


@dataclass(frozen=True)
class Observations(RowTable):
    """Results of designs, one row each."""

    index: Index  # numbers of the designs
    losses: Matrix  # a column per objective, to be minimised; infinite where unknown
    tier: Ints  # MEETS, SIMULATED or IMPOSSIBLE
    group: Ints  # scenario; only designs of the same scenario are compared
    excess: Floats  # natural logarithm of how far the limits of the condition are exceeded

    @classmethod
    def none(cls, objectives: int) -> Observations:
        """Return an empty table for a number of objectives."""
        ints, floats = np.empty(0, np.int64), np.empty(0)
        return cls(ints, np.empty((0, objectives)), ints, ints, floats)

    def of(self, index: Index) -> Observations:
        """Return the observations of designs, in this order; all of them must be known."""
        order = np.argsort(self.index)
        return self.take(order[np.searchsorted(self.index[order], index)])

    def with_new(self, other: Observations) -> Observations:
        """Return these observations and then those of designs that are new in `other`."""
        return self.joined(other.take(~np.isin(other.index, self.index)))


@dataclass(frozen=True)
class Goal:
    """The objectives of a search, its SQL condition, the given axes, and the space of prices."""

    objectives: Objectives
    where: str | None = None
    given: tuple[str, ...] = ()
    priced: DesignSpace | None = None


class Search(Protocol):
    """An ask-and-tell search."""

    def ask(self) -> Index:
        """Return numbers of designs to evaluate next; empty when the search is finished.

        The driver drops known designs and designs that the constraints forbid.
        """

    def tell(self, observed: Observations) -> None:
        """Record the results of designs that `ask` returned or the driver drew at random."""


@runtime_checkable
class SearchSampler(Protocol):
    """A sampler that searches by `ask` and `tell`."""

    points: int

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a new search of a space."""

    def size(self, space: DesignSpace) -> int:
        """Return the largest number of points that are picked, before constraints."""


def names() -> tuple[str, ...]:
    """Return the names of all samplers."""
    return SAMPLERS.names()


def options_of(name: str) -> type:
    """Return the dataclass of a sampler: its fields are its options.

    Raises:
        UnknownNameError: there is no such sampler.
        UserError: its file defines no `SAMPLER`.
    """
    kind: type = load_from(SAMPLERS, name, "SAMPLER")
    return kind


def load_sampler(name: str, **options: Any) -> Sampler | SearchSampler:
    """Return the sampler of that name with these options."""
    sampler: Sampler | SearchSampler = options_of(name)(**options)
    return sampler
