"""Two trees, each rank a leaf in at least one, reduce upwards and broadcast downwards.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
(2009). Chunks alternate between the trees. A full chunk crosses every edge; a parent waits for both
children and adds one after the other.
"""

from __future__ import annotations

from simulators.collectives.algorithms import (
    ALL_REDUCE,
    IMPOSSIBLE,
    PHASE,
)
from simulators.collectives.wires import Wire, delay_ns, log2, reduction_ns
from simulators.core.jit import kernel


@kernel(PHASE)
def phase_ns(
    wire: Wire,
    op: int,
    window: int,  # noqa: ARG001 - one signature for all algorithms
    payload: int,
    endpoint_ns: int,
    memory_bytes_per_s: float,
) -> int:
    """Return the time of an all-reduce: the longest way up and down, the root has one child."""
    height = log2(wire.ranks)
    if height < 0 or op != ALL_REDUCE:
        return IMPOSSIBLE
    total_ns = endpoint_ns
    distance = 1
    for level in range(height):
        edge_ns = endpoint_ns + delay_ns(wire, distance, payload)
        children = 1 if level == height - 1 else 2
        total_ns += 2 * edge_ns + children * reduction_ns(payload, memory_bytes_per_s)
        distance = min(2 * distance, wire.ranks // 2)
    return total_ns
