"""The replica with the fewest *waiting* requests, as VIDUR's LOR router counts them.

Running requests are not seen, so under light load the first replica is flooded. Kept to compare
with VIDUR; `least_outstanding` is the router that the name promises.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, _running: Ints, _found: Ints, _draws: Floats) -> int:
    """Join the shortest queue; ties go to the lowest number."""
    best = 0
    for replica in range(1, waiting.size):
        if waiting[replica] < waiting[best]:
            best = replica
    return best
