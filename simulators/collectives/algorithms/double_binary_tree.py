"""Double binary tree: two trees, each rank a leaf in at least one, reduce upwards, then broadcast.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
(2009). Chunks alternate between the trees. A full chunk crosses every edge; a parent waits for both
children and adds their chunks one after the other.
"""

from __future__ import annotations

from simulators.collectives.algorithms import ALL_REDUCE, IMPOSSIBLE, PHASE_NS, Phase
from simulators.collectives.topologies.blocks import Wire, delay_ns, log2, reduction_ns
from simulators.core.jit import kernel


@kernel(PHASE_NS)
def phase_ns(wire: Wire, phase: Phase) -> int:
    """Return the time of an all-reduce: the longest path up and down; the root has one child."""
    height = log2(wire.ranks)
    if height < 0 or phase.op != ALL_REDUCE:
        return IMPOSSIBLE
    total_ns = phase.endpoint_ns
    reduce_ns = reduction_ns(phase.payload, phase.memory_bytes_per_s)
    distance = 1
    for level in range(height):
        edge_ns = phase.endpoint_ns + delay_ns(wire, distance, phase.payload)
        children = 1 if level == height - 1 else 2
        total_ns += 2 * edge_ns + children * reduce_ns
        distance = min(2 * distance, wire.ranks // 2)
    return total_ns
