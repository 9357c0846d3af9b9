"""Each replica in turn, whatever its load."""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel


@kernel(ROUTE)
def route(arrivals: int, waiting: Ints, _running: Ints, _found: Ints, _draws: Floats) -> int:
    """Return the replica after that of the last arrival."""
    return arrivals % waiting.size
