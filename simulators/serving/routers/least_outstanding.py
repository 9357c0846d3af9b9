"""The replica with the fewest requests, waiting or running; ties go to the lowest number."""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, running: Ints, _found: Ints, _draws: Floats) -> int:
    """Return the replica with the fewest requests."""
    best = 0
    for replica in range(1, waiting.size):
        if waiting[replica] + running[replica] < waiting[best] + running[best]:
            best = replica
    return best
