"""What a rank sends, to whom and how often, step by step of a phase.

A rank holds a window of messages. Each message it hears frees the next one after an endpoint delay
and, in a reducing half, after adding what came; which receives are charged for adding follows
ASTRA-sim's packet counters: `plain` free ones, then `reducing` charged ones, in turns.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.topologies.blocks import log2
from simulators.core.jit import i8, kernel


@kernel(i8(i8, i8, i8))
def sends(algorithm: int, op: int, ranks: int) -> int:
    """Return the messages each rank sends, or IMPOSSIBLE; in a tree, those of the busiest edge."""
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
    """Return how many messages a rank sends before it hears any."""
    if algorithm != codes.DIRECT or op == codes.SEND_RECV:
        return 1
    return ranks - 1 if window == 0 else min(window, ranks - 1)


@kernel(i8(i8, i8, i8, i8))
def reducing(algorithm: int, op: int, ranks: int, window: int) -> int:
    """Return how many receives in a row are charged for adding, after a window of free ones."""
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
