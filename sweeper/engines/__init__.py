"""Engines: where the work of a sweep is done; what is done is the same everywhere, bit for bit.

An engine's name is the name of its file, and its fields are its options on the command line:
`inline`, `process`, `ray` and `auto`, which chooses. All cut the work into `chunks` and answer each
by a `task`. Workers that can be killed (`_child`, `_actors`) are led by one `crew`, which holds the
limits per point; `inline` has none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from simulators.core.errors import UnknownNameError
from sweeper.engines.task import Task
from sweeper.space.spans import Batch
from sweeper.store.store import Part

Say = Callable[[str], None]
"""Tells the user one line about what the engine does and why."""


class Crew(Protocol):
    """Workers that are there: they outlive a round of a sweep."""

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        """Yield a part for everything in `batches`, in any order.

        Args:
            task: what to do with a batch.
            batches: what to do it with; consumed as workers become free.
            total: how many points the batches hold, roughly; sizes the last chunks.
            say: told which workers do it.
            point_s: seconds a point is expected to take; 0 if nobody knows.
        """
        ...


@runtime_checkable
class Prepares(Protocol):
    """A crew that can begin before the first points are picked."""

    def prepare(self, task: Task) -> None:
        """Begin to load what a task needs; it may turn out to be of no use."""
        ...


class Engine(Protocol):
    """The options of an engine: a frozen dataclass of plain values, its own configuration."""

    def open(self) -> AbstractContextManager[Crew]:
        """Return a context in which a crew is at work; leaving it lets the crew go."""
        ...


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
