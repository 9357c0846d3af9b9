"""The engine of Ray actors, on this machine's cores or on a cluster's.

Ray itself is imported when the engine is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.engines import Pool


@dataclass(frozen=True)
class Ray:
    """Actors, started once per sweep.

    Args:
        actors: how many; 0 takes one per core of the cluster.
        address: `local` starts Ray here; `auto` or `ray://host:port` joins a running cluster.
        ready_s: an actor that is not ready by then is given up, also if others hold the CPUs.
    """

    actors: int = 0
    address: str = "local"
    ready_s: float = 300.0

    @contextmanager
    def open(self) -> Iterator[Pool]:
        """Start Ray, unless this process has one already, and shut the actors down at the end."""
        from sweeper.engines._ray_cluster import prepare

        prepare(self.address)  # before Ray is imported, which reads it
        from sweeper.engines import _ray_actors

        with _ray_actors.opened_pool(self.address, self.actors, self.ready_s) as pool:
            yield pool


ENGINE = Ray
