"""Chunks and phases of a collective over several dimensions.

A buffer is cut into chunks, and each chunk passes phases of one dimension each. The bandwidth-aware
all-reduce reduce-scatters inwards to outwards, all-reduces on the outermost dimension what is left,
and all-gathers back; the baseline all-reduces the whole chunk on each dimension in turn (Rashidi et
al., "Themis", 2022, section 2).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.collectives import algorithms as codes
from simulators.collectives.topologies.blocks import ALGORITHM, MAX_DIMENSIONS, RANKS
from simulators.core.jit import Ints, array, i8, kernel, matrix

PLAN, OP, SIZE, SPLITS, ACTIVE, QUEUES, ENDPOINT_NS, BASELINE = range(8)
"""Columns of a request: which network, which collective, its bytes, chunks it is cut into and that
a dimension works on at once, queues, endpoint delay, whether phases have the baseline order."""
DIMENSION, PHASE_OP, PAYLOAD, HALF = range(4)
"""Columns of a phase."""
MAX_PHASES: Final = 2 * MAX_DIMENSIONS - 1
ANY_QUEUE, FIRST_HALF, SECOND_HALF = range(3)
"""Which queues of its dimension a phase may use."""


def phases_of(network: Ints, op: int, chunk: int, *, baseline: bool) -> Ints:
    """Return the phases of one chunk over the dimensions of a network."""
    phases = np.zeros((MAX_PHASES, 4), np.int64)
    return phases[: lay_out(op, int(baseline), network, chunk, phases)]


@kernel(i8(i8, i8, matrix(i8), i8, matrix(i8)))
def lay_out(op: int, is_baseline: int, network: Ints, chunk: int, phases: Ints) -> int:
    """Write the phases of one chunk and return their number; dimensions of one rank are skipped.

    Trees know no halves: in their dimensions both halves of a bandwidth-aware all-reduce are
    all-reduces of the whole chunk, as in the reference simulator.
    """
    ranks, is_tree = network[:, RANKS], network[:, ALGORITHM] == codes.DOUBLE_BINARY_TREE
    count, last, size = 0, -1, chunk
    for d in range(ranks.size):
        if ranks[d] > 1:
            last = d
    is_aware = op == codes.ALL_REDUCE and is_baseline == 0
    phases[:, HALF] = FIRST_HALF if is_aware else ANY_QUEUE
    is_inwards = op in (codes.ALL_GATHER, codes.BROADCAST)
    for place in range(last + 1):
        d = last - place if is_inwards else place
        if ranks[d] == 1 or (op == codes.SEND_RECV and count > 0):
            continue
        phases[count, DIMENSION], phases[count, PHASE_OP], phases[count, PAYLOAD] = d, op, size
        if is_aware and d < last and not is_tree[d]:
            phases[count, PHASE_OP] = codes.REDUCE_SCATTER
        if phases[count, PHASE_OP] == codes.REDUCE_SCATTER:
            size = size // ranks[d]
        elif op == codes.ALL_GATHER:
            size = size * ranks[d]
        count += 1
    if is_aware:
        for d in range(last - 1, -1, -1):
            if ranks[d] > 1:
                phases[count, DIMENSION], phases[count, PAYLOAD] = d, size
                phases[count, PHASE_OP] = codes.ALL_REDUCE if is_tree[d] else codes.ALL_GATHER
                phases[count, HALF] = SECOND_HALF
                size = size if is_tree[d] else size * ranks[d]
                count += 1
    return count


@kernel(i8(i8, i8, i8))
def queue_of(half: int, queues: int, turn: int) -> int:
    """Return the queue that a stream joins: round robin among the queues of its half."""
    if half == FIRST_HALF:
        return turn % max(1, queues // 2)
    if half == SECOND_HALF:
        return queues // 2 + turn % (queues - queues // 2)
    return turn % queues


@kernel(i8(array(i8), i8))
def chunk_bytes(asked: Ints, ranks: int) -> int:
    """Return the bytes of a chunk; but of all-gathers no chunk is smaller than the ranks are."""
    least = 1 if asked[OP] == codes.ALL_GATHER else ranks
    return max(int(asked[SIZE] // asked[SPLITS]), least)


@kernel(i8(array(i8), i8))
def chunks_of(asked: Ints, ranks: int) -> int:
    """Return the number of chunks; an indivisible size adds one of full size."""
    if asked[OP] != codes.ALL_GATHER and asked[SIZE] // asked[SPLITS] < ranks:
        return int(asked[SPLITS])
    return -(-int(asked[SIZE]) // chunk_bytes(asked, ranks))
