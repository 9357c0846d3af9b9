"""A replica drawn uniformly, as an unaware load balancer would."""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, _running: Ints, _found: Ints, draws: Floats) -> int:
    """Map the first draw to a replica."""
    return int(draws[0] * waiting.size)
