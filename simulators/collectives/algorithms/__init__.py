"""An algorithm carries out one collective among the ranks of one dimension: its steps and sizes.

Each module knows one algorithm as `phase_ns`, the time of the whole phase when nothing else is on
the wires. Times are whole nanoseconds, truncated wherever the reference simulator truncates
(ASTRA-sim with its analytical network backend: Rashidi et al., 2020; Won et al., 2023).
"""

from __future__ import annotations

from simulators.collectives.wires import WIRE
from simulators.core.jit import f8, i8

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND_RECV = range(6)
COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv",
)  # fmt: skip
"""By code; sizes are those of the full buffer of a rank, for all_gather of a rank's shard."""

RING, DIRECT, HALVING_DOUBLING, DOUBLE_BINARY_TREE, IN_NETWORK = range(5)
ALGORITHMS = ("ring", "direct", "halving_doubling", "double_binary_tree", "in_network")
"""By code; each is a module of this folder."""

IMPOSSIBLE = -1
"""Instead of a time: the algorithm does not exist for this collective and number of ranks."""

PHASE = i8(WIRE, i8, i8, i8, i8, f8)
"""wire, op, window, payload in bytes, endpoint delay in ns, local memory in bytes per second."""
