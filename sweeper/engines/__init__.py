"""Engines evaluate the points of a sweep; the rows are the same bits in every engine.

An engine is chosen by the name of its file (`inline`, `process`, `ray`, `auto`); its fields are its
options on the command line. All engines split the work into `chunks` and evaluate each by a `Task`.
Workers that can be killed (`process`, `_ray_actors`) are run by a `WorkerPool`, which enforces the
limits per point; `inline` has no limits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from simulators.core.errors import UnknownNameError
from sweeper.engines.task import Task
from sweeper.space.points import Batch
from sweeper.store.store import Part

Say = Callable[[str], None]
"""Shows the user one line about the engine."""


class Pool(Protocol):
    """Workers of a sweep, kept from one round to the next."""

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        """Yield the parts of all batches, in any order.

        Args:
            task: the work on a batch.
            batches: consumed as workers become free.
            total: rough number of points, which sizes the last chunks.
            say: receives lines about the workers.
            point_s: expected seconds per point; 0 if unknown.
        """


class Engine(Protocol):
    """The options of an engine: a frozen dataclass of plain values."""

    def open(self) -> AbstractContextManager[Pool]:
        """Return a context with a pool of workers, which are shut down at its end."""


ENGINES = ("auto", "inline", "process", "ray")


def options_of(name: str) -> type:
    """Return the dataclass of an engine's options."""
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    kind: type = importlib.import_module(f"sweeper.engines.{name}").ENGINE
    return kind


def load_engine(name: str, **options: Any) -> Engine:
    """Return the engine of that name with these options."""
    engine: Engine = options_of(name)(**options)
    return engine
