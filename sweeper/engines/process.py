"""The engine of one other process: a point that hangs, exits or takes all memory costs its row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.engines import Crew


@dataclass(frozen=True)
class Process:
    """One worker, which is killed and replaced where a point goes beyond its limits."""

    @contextmanager
    def open(self) -> Iterator[Crew]:
        """Keep the process for the next sweep, if it is still there at the end."""
        from sweeper.engines import _child

        with _child.team() as crew:
            yield crew


ENGINE = Process
