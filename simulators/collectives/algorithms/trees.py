"""Who passes a chunk on to whom: chains, stars, binomial and binary trees over the ranks.

A broadcast is a chain around a ring, a star where the root sends to everyone, or a binomial tree.
The two trees of Sanders, Speck and Träff (2009) are one in-order binary tree, whose leaves are the
odd positions, and its mirror image; position 0 is the root above the middle.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.topologies.blocks import log2
from simulators.core.jit import i8, kernel

NO_TREE, CHAIN, STAR, BINOMIAL, BINARY = range(5)


@kernel(i8(i8, i8))
def shape_of(algorithm: int, op: int) -> int:
    """Return the tree that an algorithm passes chunks along, if it does.

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
    """Return how many ranks a position passes a chunk on to.

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
    """Return whom a position passes a chunk on to in one of its turns.

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
    """Return whom a position of the binary tree reports to; of the root, itself.

    >>> [parent(8, p) for p in range(8)]
    [0, 2, 4, 2, 0, 6, 4, 6]
    """
    lowest = position & -position
    above = (position ^ lowest) | (2 * lowest)
    return above if above < ranks else 0
