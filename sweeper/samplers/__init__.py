"""Samplers pick points in rounds; they read results from the store, which is the only memory.

A grid is one endless lazy round; a search is one round per generation. A sampler's name is the name
of its file, and its fields are its options on the command line: `grid`, `random`, `sobol`. The
bisection in `_capacity` is not chosen by name but by an axis that asks for a capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import polars as pl

from simulators.core.folder import Folder
from simulators.core.modules import load_from
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Batch

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


def load_sampler(name: str, **options: Any) -> Sampler:
    """Return the sampler of that name with these options."""
    sampler: Sampler = options_of(name)(**options)
    return sampler
