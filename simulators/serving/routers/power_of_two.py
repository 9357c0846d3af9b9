"""The less loaded of two replicas drawn at random.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001): nearly as even as
asking all, at the cost of asking two.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, running: Ints, _found: Ints, draws: Floats) -> int:
    """Draw two, which may be the same; the first wins a tie."""
    first = int(draws[0] * waiting.size)
    second = int(draws[1] * waiting.size)
    if waiting[second] + running[second] < waiting[first] + running[first]:
        return second
    return first
