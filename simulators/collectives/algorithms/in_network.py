"""In-network reduction: a switch adds the data of all ports in a single crossing, for any n.

Graham et al., "Scalable hierarchical aggregation protocol" (2016); NVLink switches of the third
generation do the same (NVLS). Each rank sends its buffer once and receives the sum once, so an
all-reduce moves half of what a ring does; an all-gather is a multicast.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms import PHASE_NS, Phase
from simulators.collectives.topologies.blocks import FAT_TREE_BLOCK, SWITCH_BLOCK, Wire, delay_ns
from simulators.core.jit import kernel


@kernel(PHASE_NS)
def phase_ns(wire: Wire, phase: Phase) -> int:
    """Return the time of a phase on a switch: that of the busier direction of a port.

    A leaf switch of a fat tree reduces the data of its ports, so its uplinks carry one buffer.
    """
    is_switched = wire.block == SWITCH_BLOCK or wire.block == FAT_TREE_BLOCK
    if not is_switched or phase.op == codes.ALL_TO_ALL:
        return codes.IMPOSSIBLE
    moved = phase.payload
    if phase.op == codes.ALL_GATHER:
        moved = phase.payload * (wire.ranks - 1)
    if phase.op == codes.REDUCE_SCATTER:
        moved = phase.payload - phase.payload // wire.ranks
    return 2 * phase.endpoint_ns + delay_ns(wire, 1, moved)
