"""The engine of child processes: a point that hangs, exits or takes all memory costs its row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.engines import Pool


@dataclass(frozen=True)
class Process:
    """Workers on this machine, killed and replaced where a point exceeds its limits.

    Args:
        workers: how many; 0 takes one per core.
    """

    workers: int = 1

    @contextmanager
    def open(self) -> Iterator[Pool]:
        """Keep a single idle worker for the next sweep of this process."""
        from sweeper.engines import child_process

        with child_process.opened_pool(self.workers or os.cpu_count() or 1) as pool:
            yield pool


ENGINE = Process
