"""The engine of other processes: a point that hangs, exits or takes all memory costs its row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.engines import Crew


@dataclass(frozen=True)
class Process:
    """Workers on this machine, killed and replaced where a point goes beyond its limits.

    Args:
        workers: how many; 0 takes one per core.
    """

    workers: int = 1

    @contextmanager
    def open(self) -> Iterator[Crew]:
        """Keep a single process for the next sweep, if it is still there at the end."""
        from sweeper.engines import _child

        with _child.team(self.workers or os.cpu_count() or 1) as crew:
            yield crew


ENGINE = Process
