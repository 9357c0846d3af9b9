"""Algorithms of collectives among the ranks of a dimension, with a module for each.

`phase_ns` of a module is the time of the whole phase when nothing else is on the wires, in whole
nanoseconds, truncated wherever the reference simulator truncates (ASTRA-sim with its analytical
network backend: Rashidi et al., 2020; Won et al., 2023). `steps.py` lists the messages.
"""

from __future__ import annotations

from typing import NamedTuple

from simulators.collectives.topologies.blocks import WIRE
from simulators.core.jit import i8, struct

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND_RECV = range(6)
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
)
"""By code; sizes are the full buffer of a rank, for all_gather the shard of a rank."""

RING, DIRECT, HALVING_DOUBLING, DOUBLE_BINARY_TREE, IN_NETWORK = range(5)
ALGORITHMS = ("ring", "direct", "halving_doubling", "double_binary_tree", "in_network")
"""By code; each is a module of this folder."""

IMPOSSIBLE = -1
"""Instead of a time: the algorithm does not exist for this collective and number of ranks."""


class Phase(NamedTuple):
    """A collective among the ranks of one dimension."""

    op: int
    window: int  # messages in flight, of direct exchanges; 0 is all
    payload: int  # bytes
    endpoint_ns: int  # before the first message and after every receive
    memory_bytes_per_s: float  # of the local memory that reductions use


PHASE_NS = i8(WIRE, struct(Phase))
