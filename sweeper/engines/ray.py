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
        point_timeout_s: a point alone that takes longer becomes a row with status `timeout`.
    """

    actors: int = 0
    address: str = "local"
    point_timeout_s: float = 600.0

    @contextmanager
    def open(self) -> Iterator[Crew]:
        """Start Ray, unless this process has one already, and let everybody go at the end."""
        from sweeper.engines import _actors

        with _actors.hired(self.address, self.actors, self.point_timeout_s) as crew:
            yield crew


ENGINE = Ray
