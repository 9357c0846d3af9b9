"""A collective over several dimensions is a sequence of one-dimensional phases, chunk by chunk.

The bandwidth-aware all-reduce reduce-scatters inwards to outwards, all-reduces on the outermost
dimension what is left, and all-gathers back; the baseline all-reduces the whole chunk on each
dimension in turn. (Rashidi et al., "Themis", 2022, section 2.) A buffer is cut into chunks, so that
different chunks can be in different phases.
"""

from __future__ import annotations

from typing import Final

from simulators.collectives.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    SEND_RECV,
)
from simulators.core.jit import Ints, array, i8, kernel, void

MAX_DIMENSIONS: Final = 4
MAX_PHASES: Final = 2 * MAX_DIMENSIONS - 1
ANY_QUEUE, FIRST_HALF, SECOND_HALF = range(3)
"""Which queues of its dimension a phase may use."""


@kernel(i8(i8, i8, array(i8), i8, array(i8), array(i8), array(i8), array(i8)))
def lay_out(
    op: int,
    is_baseline: int,
    ranks: Ints,
    chunk: int,
    dimension: Ints,
    phase_op: Ints,
    payload: Ints,
    half: Ints,
) -> int:
    """Write the phases of one chunk and return their number; dimensions of one rank are skipped."""
    count = 0
    size = chunk
    last = -1
    for d in range(ranks.size):
        if ranks[d] > 1:
            last = d
    half[:] = ANY_QUEUE
    if op in (ALL_GATHER, BROADCAST):
        for d in range(last, -1, -1):
            if ranks[d] > 1:
                dimension[count], phase_op[count], payload[count] = d, op, size
                size = size * ranks[d] if op == ALL_GATHER else size
                count += 1
        return count
    for d in range(last + 1):
        if ranks[d] == 1:
            continue
        dimension[count], phase_op[count], payload[count] = d, op, size
        count += 1
        if op == SEND_RECV:
            return count
        if op == REDUCE_SCATTER:
            size = size // ranks[d]
        if op == ALL_REDUCE and is_baseline == 0:
            half[count - 1] = FIRST_HALF
            if d < last:
                phase_op[count - 1] = REDUCE_SCATTER
                size = size // ranks[d]
    if op == ALL_REDUCE and is_baseline == 0:
        for d in range(last - 1, -1, -1):
            if ranks[d] > 1:
                dimension[count], phase_op[count], payload[count] = d, ALL_GATHER, size
                half[count] = SECOND_HALF
                size = size * ranks[d]
                count += 1
    return count


@kernel(i8(i8, i8, i8))
def queue_of(half: int, queues: int, turn: int) -> int:
    """Return the queue of its dimension that a stream joins: in turn among those it may use."""
    if half == FIRST_HALF:
        return turn % max(1, queues // 2)
    if half == SECOND_HALF:
        return queues // 2 + turn % (queues - queues // 2)
    return turn % queues


@kernel(void(i8, i8, i8, i8, array(i8)))
def split(op: int, size: int, splits: int, ranks: int, out: Ints) -> None:
    """Write chunk bytes and the number of chunks; an indivisible size adds one of full size."""
    chunk = size // splits
    if op != ALL_GATHER and chunk < ranks:
        chunk, size = ranks, splits * ranks
    if chunk == 0:
        chunk = 1
    out[0], out[1] = chunk, -(-size // chunk)
