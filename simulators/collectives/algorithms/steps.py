"""Messages of each rank in a phase: destination, size and count, step by step or along a tree.

A broadcast is a chain around a ring, a star where the root sends to every rank, or a binomial tree.
The two trees of Sanders, Speck and Träff (2009) are one in-order binary tree, whose leaves are the
odd positions, and its mirror image; position 0 is the root above the middle.

Elsewhere a rank holds a window of messages. Each received message releases the next one after an
endpoint delay and, in a reducing half, after the addition. ASTRA-sim's packet counters say which
receives are charged for an addition: `plain` free receives, then `reducing` charged receives,
alternating.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.topologies.blocks import log2
from simulators.core.jit import i8, kernel

NO_TREE, CHAIN, STAR, BINOMIAL, BINARY = range(5)


@kernel(i8(i8, i8))
def shape_of(algorithm: int, op: int) -> int:
    """Return the tree of an algorithm, or NO_TREE.

    >>> shape_of(codes.RING, codes.BROADCAST) == CHAIN
    True
    """
    if algorithm == codes.DOUBLE_BINARY_TREE and op == codes.ALL_REDUCE:
        return BINARY
    if op != codes.BROADCAST:
        return NO_TREE
    if algorithm == codes.RING:
        return CHAIN
    if algorithm == codes.DIRECT:
        return STAR
    return BINOMIAL if algorithm == codes.HALVING_DOUBLING else NO_TREE


@kernel(i8(i8, i8, i8))
def children(shape: int, ranks: int, position: int) -> int:
    """Return the number of children of a position.

    >>> [children(BINARY, 8, p) for p in range(8)]
    [1, 0, 2, 0, 2, 0, 2, 0]
    """
    lowest = position & -position
    if shape == CHAIN:
        return int(position < ranks - 1)
    if shape == STAR:
        return ranks - 1 if position == 0 else 0
    if shape == BINOMIAL:
        return log2(ranks if position == 0 else lowest)
    if position == 0:
        return int(ranks > 1)
    return 2 if lowest > 1 else 0


@kernel(i8(i8, i8, i8, i8))
def child(shape: int, ranks: int, position: int, turn: int) -> int:
    """Return the position of a child; `turn` counts the children.

    >>> [child(BINOMIAL, 8, 0, turn) for turn in range(3)]
    [4, 2, 1]
    """
    lowest = position & -position
    if shape == CHAIN:
        return position + 1
    if shape == STAR:
        return 1 + turn
    if shape == BINOMIAL:
        return position + ((ranks if position == 0 else lowest) >> (turn + 1))
    if position == 0:
        return ranks // 2
    return position + (lowest // 2 if turn else -(lowest // 2))


@kernel(i8(i8, i8))
def parent(ranks: int, position: int) -> int:
    """Return the parent of a position of the binary tree; of the root, the root.

    >>> [parent(8, p) for p in range(8)]
    [0, 2, 4, 2, 0, 6, 4, 6]
    """
    lowest = position & -position
    above = (position ^ lowest) | (2 * lowest)
    return above if above < ranks else 0


@kernel(i8(i8, i8, i8))
def sends(algorithm: int, op: int, ranks: int) -> int:
    """Return the number of messages per rank, or IMPOSSIBLE; in a tree, of the busiest edge."""
    if algorithm == codes.DOUBLE_BINARY_TREE:
        return 2 if op == codes.ALL_REDUCE and log2(ranks) >= 0 else codes.IMPOSSIBLE
    if algorithm == codes.IN_NETWORK:
        return codes.IMPOSSIBLE if op == codes.ALL_TO_ALL else 1
    if algorithm == codes.HALVING_DOUBLING:
        steps = log2(ranks)
        if steps < 0 or op == codes.ALL_TO_ALL:
            return codes.IMPOSSIBLE
        return 1 if op == codes.SEND_RECV else steps * (2 if op == codes.ALL_REDUCE else 1)
    if op == codes.SEND_RECV:
        return 1
    if algorithm == codes.RING and op == codes.ALL_TO_ALL:
        return ranks * (ranks - 1) // 2
    return (ranks - 1) * (2 if op == codes.ALL_REDUCE else 1)


@kernel(i8(i8, i8, i8, i8))
def in_flight(algorithm: int, op: int, ranks: int, window: int) -> int:
    """Return the number of messages a rank sends before it receives any."""
    if algorithm != codes.DIRECT or op == codes.SEND_RECV:
        return 1
    return ranks - 1 if window == 0 else min(window, ranks - 1)


@kernel(i8(i8, i8, i8, i8))
def reducing(algorithm: int, op: int, ranks: int, window: int) -> int:
    """Return the number of consecutive receives charged for an addition, after the free ones."""
    if algorithm == codes.RING:
        return ranks - 1
    if algorithm == codes.HALVING_DOUBLING:
        return max(0, log2(ranks) - 1)
    if algorithm == codes.IN_NETWORK:
        return 0
    return in_flight(algorithm, op, ranks, window)


@kernel(i8(i8, i8, i8, i8))
def offset_of(algorithm: int, op: int, ranks: int, step: int) -> int:
    """Return the distance, in ranks, to the partner of a step."""
    if algorithm == codes.DIRECT:
        return 1 + step % (ranks - 1)
    if algorithm == codes.HALVING_DOUBLING:
        steps = log2(ranks)
        if op in (codes.ALL_GATHER, codes.BROADCAST, codes.SEND_RECV):
            return max(1, ranks >> (step + 1))
        return 1 << step if step < steps else max(1, (1 << (2 * steps - 1)) >> step)
    return 1


@kernel(i8(i8, i8, i8, i8, i8))
def message_of(algorithm: int, op: int, ranks: int, payload: int, step: int) -> int:
    """Return the bytes of a step's message."""
    if algorithm == codes.IN_NETWORK:
        if op == codes.ALL_GATHER:
            return payload * (ranks - 1)
        return payload - payload // ranks if op == codes.REDUCE_SCATTER else payload
    if algorithm == codes.HALVING_DOUBLING:
        steps = log2(ranks)
        if op == codes.ALL_GATHER:
            return payload << min(step, steps)
        if op in (codes.BROADCAST, codes.SEND_RECV):
            return payload
        return payload >> (step + 1) if step < steps else payload >> max(1, 2 * steps - step)
    if algorithm == codes.DOUBLE_BINARY_TREE:
        return payload
    if op in (codes.ALL_REDUCE, codes.REDUCE_SCATTER, codes.ALL_TO_ALL):
        return payload // ranks
    return payload
