"""A switch that adds what its ports send needs one crossing for an all-reduce, whatever n.

Graham et al., "Scalable hierarchical aggregation protocol" (2016); NVLink switches of the third
generation do the same (NVLS). Each rank sends its buffer once and receives the sum once, so an
all-reduce moves half of what a ring does; an all-gather is a multicast.
"""

from __future__ import annotations

from simulators.collectives.algorithms import (
    ALL_GATHER,
    ALL_TO_ALL,
    IMPOSSIBLE,
    PHASE,
    REDUCE_SCATTER,
)
from simulators.collectives.wires import FAT_TREE_BLOCK, SWITCH_BLOCK, Wire, delay_ns
from simulators.core.jit import kernel


@kernel(PHASE)
def phase_ns(
    wire: Wire,
    op: int,
    window: int,  # noqa: ARG001 - one signature for all algorithms
    payload: int,
    endpoint_ns: int,
    memory_bytes_per_s: float,  # noqa: ARG001 - one signature for all algorithms
) -> int:
    """Return the time of a phase on a switch: the busier direction of a port decides.

    A leaf switch of a fat tree adds up what its ports send, so its uplinks carry no more than one.
    """
    if (wire.block != SWITCH_BLOCK and wire.block != FAT_TREE_BLOCK) or op == ALL_TO_ALL:
        return IMPOSSIBLE
    moved = payload
    if op == ALL_GATHER:
        moved = payload * (wire.ranks - 1)
    if op == REDUCE_SCATTER:
        moved = payload - payload // wire.ranks
    return 2 * endpoint_ns + delay_ns(wire, 1, moved)
