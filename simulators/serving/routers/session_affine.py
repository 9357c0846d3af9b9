"""The replica that the session of a request hashes to, whatever its load.

Requests of one session find the prefixes of its earlier turns. Routers with sticky sessions, such
as the `session` policy of vLLM's production stack, hash the session's identifier to a replica. A
request without a session is drawn uniformly.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.replica import ROUTE, kernel


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, _running: Ints, _found: Ints, draws: Floats) -> int:
    """Map the draw of the session to a replica."""
    return int(draws[2] * waiting.size)
