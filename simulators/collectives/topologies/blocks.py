"""Hops, delay and reduction time of a message on one dimension of a network.

A building block connects the ranks of one dimension. A message takes two hops on a switch, one hop
between fully connected ranks, and the shorter way around a ring. In a fat tree it takes four hops
if it leaves its leaf switch, whose uplinks carry `leaf / oversubscription` ports.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, struct

BLOCKS = ("ring", "fully_connected", "switch", "fat_tree")
RING_BLOCK, FULL_BLOCK, SWITCH_BLOCK, FAT_TREE_BLOCK = range(4)

MAX_DIMENSIONS: Final = 4
BLOCK, RANKS, ALGORITHM, WINDOW, LEAF = range(5)
"""Columns of a network's whole numbers, a row per dimension."""
BYTES_PER_NS, LATENCY_NS, OVERSUBSCRIPTION = range(3)
"""Columns of its other numbers."""


class Wire(NamedTuple):
    """The links of one dimension; times in nanoseconds."""

    block: int
    ranks: int
    leaf: int
    oversubscription: float
    bytes_per_ns: float
    latency_ns: float


WIRE: Any = struct(Wire)


@kernel(WIRE(array(i8), array(f8)), no_refcount=True)
def wire_of(whole: Ints, rates: Floats) -> Wire:
    """Return the links of a dimension from its rows of numbers."""
    return Wire(
        whole[BLOCK],
        whole[RANKS],
        whole[LEAF],
        rates[OVERSUBSCRIPTION],
        rates[BYTES_PER_NS],
        rates[LATENCY_NS],
    )


@kernel(i8(i8, i8, i8, i8))
def hops(block: int, ranks: int, leaf: int, offset: int) -> int:
    """Return the number of links between two ranks at a distance of `offset`.

    >>> hops(RING_BLOCK, 8, 0, 5), hops(FULL_BLOCK, 8, 0, 5), hops(SWITCH_BLOCK, 8, 0, 5)
    (3, 1, 2)
    """
    if block == RING_BLOCK:
        return min(offset, ranks - offset)
    if block == FULL_BLOCK:
        return 1
    if block == FAT_TREE_BLOCK and ranks > leaf:
        return 4
    return 2


@kernel(i8(WIRE, i8, i8))
def delay_ns(wire: Wire, offset: int, message: int) -> int:
    """Return the time of a message over `offset` ranks while all ranks send the same.

    In a fat tree `min(offset, leaf)` messages leave each leaf at once and share its uplinks.

    >>> delay_ns(Wire(SWITCH_BLOCK, 8, 0, 1.0, 10.0, 100.5), 1, 1_000)
    301
    """
    rate = wire.bytes_per_ns
    if wire.block == FAT_TREE_BLOCK and wire.ranks > wire.leaf:
        leaving = min(min(offset, wire.ranks - offset), wire.leaf)
        rate = min(rate, wire.bytes_per_ns * wire.leaf / (wire.oversubscription * leaving))
    crossed = hops(wire.block, wire.ranks, wire.leaf, offset)
    return int(crossed * wire.latency_ns + message / rate)


@kernel(i8(i8, f8))
def reduction_ns(message: int, memory_bytes_per_s: float) -> int:
    """Return the ns to add a message to a local buffer: two reads and one write."""
    return 3 * int(message / memory_bytes_per_s * 1e9)


@kernel(i8(i8))
def log2(ranks: int) -> int:
    """Return the logarithm of a power of two, and -1 for other numbers."""
    power, steps = 1, 0
    while power < ranks:
        power, steps = 2 * power, steps + 1
    return steps if power == ranks else -1
