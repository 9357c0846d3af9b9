"""The engine of Ray actors, on this machine's cores or on a cluster's.

The options only; who does the work is in `_actors`, so that a command line that merely offers this
engine need not import Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.engines import Crew


@dataclass(frozen=True)
class Ray:
    """Actors hired once per sweep.

    Args:
        actors: how many; 0 takes one per core of the cluster.
        address: `local` starts Ray here; `auto` or `ray://host:port` joins a running cluster.
        ready_s: an actor that is not ready by then is given up, be it that others hold the CPUs.
    """

    actors: int = 0
    address: str = "local"
    ready_s: float = 300.0

    @contextmanager
    def open(self) -> Iterator[Crew]:
        """Start Ray, unless this process has one already, and let everybody go at the end."""
        from sweeper.engines._cluster import prepare

        prepare(self.address)  # before Ray is imported, which reads it
        from sweeper.engines import _actors

        with _actors.hired(self.address, self.actors, self.ready_s) as crew:
            yield crew


ENGINE = Ray
