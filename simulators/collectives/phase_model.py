"""Time, bytes and energy of a collective without contention: chunks queue for fixed-time phases.

A buffer is split into chunks, and each chunk passes phases of one dimension each. The
bandwidth-aware all-reduce reduce-scatters from the inner to the outer dimensions, all-reduces the
remainder on the outermost dimension, and all-gathers back; the baseline all-reduces the whole chunk
on each dimension in turn (Rashidi et al., "Themis", 2022, section 2).

Each dimension serves a few chunks at once and the rest wait in order of arrival; a chunk that ends
a phase joins the tail of the next phase's queue. The time of a phase comes from its algorithm. This
is the congestion-unaware model of ASTRA-sim, in whole nanoseconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms import ALL_REDUCE, Phase
from simulators.collectives.algorithms.direct import phase_ns as direct_ns
from simulators.collectives.algorithms.double_binary_tree import phase_ns as tree_ns
from simulators.collectives.algorithms.halving_doubling import phase_ns as halving_ns
from simulators.collectives.algorithms.in_network import phase_ns as in_network_ns
from simulators.collectives.algorithms.ring import phase_ns as ring_ns
from simulators.collectives.algorithms.steps import (
    NO_TREE,
    child,
    children,
    message_of,
    offset_of,
    sends,
    shape_of,
)
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.blocks import ALGORITHM, MAX_DIMENSIONS, RANKS, hops, wire_of
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

PLAN, OP, SIZE, SPLITS, ACTIVE, QUEUES, ENDPOINT_NS, BASELINE = range(8)
"""Columns of a request: position of the plan, code of the collective, bytes, number of chunks,
chunks in flight per dimension, queues, endpoint delay, whether phases have the baseline order."""
DIMENSION, PHASE_OP, PAYLOAD, HALF = range(4)
"""Columns of a phase."""
MAX_PHASES: Final = 2 * MAX_DIMENSIONS - 1
ANY_QUEUE, FIRST_HALF, SECOND_HALF = range(3)
"""Queues of its dimension that a phase may use."""


def phases_of(network: Ints, op: int, chunk: int, *, baseline: bool) -> Ints:
    """Return the phases of one chunk over the dimensions of a network."""
    phases = np.zeros((MAX_PHASES, 4), np.int64)
    return phases[: lay_out(op, int(baseline), network, chunk, phases)]


@kernel(i8(i8, i8, matrix(i8), i8, matrix(i8)))
def lay_out(op: int, is_baseline: int, network: Ints, chunk: int, phases: Ints) -> int:
    """Write the phases of one chunk and return their number; skip dimensions of one rank.

    Trees have no reduce-scatter: in their dimensions both halves of a bandwidth-aware all-reduce
    are all-reduces of the whole chunk, as in the reference simulator.
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
    """Return the bytes of a chunk: at least one byte per rank, except for all-gathers."""
    least = 1 if asked[OP] == codes.ALL_GATHER else ranks
    return max(int(asked[SIZE] // asked[SPLITS]), least)


@kernel(i8(array(i8), i8))
def chunks_of(asked: Ints, ranks: int) -> int:
    """Return the number of chunks; an indivisible size adds a chunk of full size."""
    if asked[OP] != codes.ALL_GATHER and asked[SIZE] // asked[SPLITS] < ranks:
        return int(asked[SPLITS])
    return -(-int(asked[SIZE]) // chunk_bytes(asked, ranks))


@kernel(i8(i8, i8, array(i8), array(f8), i8, f8))
def phase_ns(
    op: int, payload: int, whole: Ints, rates: Floats, endpoint_ns: int, memory_bytes_per_s: float
) -> int:
    """Return the time of a phase in ns, by the algorithm of its dimension."""
    wire = wire_of(whole, rates)
    phase = Phase(op, whole[blocks.WINDOW], payload, endpoint_ns, memory_bytes_per_s)
    algorithm = whole[blocks.ALGORITHM]
    if algorithm == codes.RING:
        return ring_ns(wire, phase)
    if algorithm == codes.DIRECT:
        return direct_ns(wire, phase)
    if algorithm == codes.HALVING_DOUBLING:
        return halving_ns(wire, phase)
    if algorithm == codes.DOUBLE_BINARY_TREE:
        return tree_ns(wire, phase)
    return in_network_ns(wire, phase)


@kernel(i8(i8, matrix(i8), array(i8), i8, i8))
def flow_shop_ns(chunks: int, phases: Ints, duration: Ints, active: int, queues: int) -> int:
    """Return the time in ns at which the last of equal chunks has passed all phases."""
    servers = -(-active // queues)
    if len(phases) == 1:
        half = phases[0, HALF]
        lanes = 1 + queue_of(half, queues, max(1, queues // 2) - 1) if half else queues
        longest = -(-chunks // lanes)
        return -(-longest // servers) * int(duration[0])
    lines = (int(np.max(phases[:, DIMENSION])) + 1) * queues
    head = np.full(lines, -1, np.int64)
    tail = np.full(lines, -1, np.int64)
    running = np.zeros(lines, np.int64)
    follower = np.full(chunks, -1, np.int64)
    stage = np.zeros(chunks, np.int64)
    slots = min(chunks, lines * servers)
    busy_until = np.zeros(slots, np.int64)
    order = np.zeros(slots, np.int64)
    served = np.zeros(slots, np.int64)
    arrived, busy, sequence, now, left = 0, 0, 0, 0, chunks
    while left > 0:
        left_line, joined_line = -1, -1
        if arrived < chunks:
            s, arrived = arrived, arrived + 1
        else:
            first = 0
            for i in range(1, busy):
                if busy_until[i] < busy_until[first] or (
                    busy_until[i] == busy_until[first] and order[i] < order[first]
                ):
                    first = i
            s, now = served[first], busy_until[first]
            busy -= 1
            busy_until[first], order[first] = busy_until[busy], order[busy]
            served[first] = served[busy]
            p = stage[s]
            left_line = phases[p, DIMENSION] * queues + queue_of(phases[p, HALF], queues, s)
            running[left_line] -= 1
            stage[s] += 1
        p = stage[s]
        if p < len(phases):
            joined_line = phases[p, DIMENSION] * queues + queue_of(phases[p, HALF], queues, s)
            follower[s] = -1
            if head[joined_line] < 0:
                head[joined_line], tail[joined_line] = s, s
            else:
                follower[tail[joined_line]], tail[joined_line] = s, s
        else:
            left -= 1
        for line in (left_line, joined_line):
            while line >= 0 and head[line] >= 0 and running[line] < servers:
                starting = head[line]
                head[line] = follower[starting]
                running[line] += 1
                busy_until[busy] = now + duration[stage[starting]]
                order[busy], served[busy] = sequence, starting
                busy, sequence = busy + 1, sequence + 1
    return now


@kernel(void(matrix(i8), array(f8), array(i8, 3), array(f8, 3), array(i8)))
def collectives_ns(
    requests: Ints, memory_bytes_per_s: Floats, whole: Ints, rates: Floats, out: Ints
) -> None:
    """Write the time of every request in ns to `out`, or IMPOSSIBLE.

    `requests` has the columns `PLAN` to `BASELINE`, networks have the columns of `blocks`.
    """
    phases, duration = np.zeros((MAX_PHASES, 4), np.int64), np.zeros(MAX_PHASES, np.int64)
    for i in range(requests.shape[0]):
        row = requests[i]
        network, rate = whole[row[PLAN]], rates[row[PLAN]]
        everyone = np.prod(network[:, blocks.RANKS])
        count = lay_out(row[OP], row[BASELINE], network, chunk_bytes(row, everyone), phases)
        out[i] = 0
        for p in range(count):
            d = phases[p, DIMENSION]
            duration[p] = phase_ns(
                phases[p, PHASE_OP],
                phases[p, PAYLOAD],
                network[d],
                rate[d],
                row[ENDPOINT_NS],
                memory_bytes_per_s[i],
            )
            if duration[p] == codes.IMPOSSIBLE:
                out[i] = codes.IMPOSSIBLE
        if count > 0 and out[i] != codes.IMPOSSIBLE:
            chunks = chunks_of(row, everyone)
            out[i] = flow_shop_ns(chunks, phases[:count], duration, row[ACTIVE], row[QUEUES])


MESSAGES, RANK_BYTES, ENERGY_J, BUSY_NS = range(4)
LEAST_NS: Final = BUSY_NS + blocks.MAX_DIMENSIONS
"""Columns: messages of all ranks, mean bytes sent per rank, joules; by dimension, busy time of the
links of a rank, and of the link with the most bytes: the port of a root, or uplinks of a leaf."""
COLUMNS: Final = LEAST_NS + blocks.MAX_DIMENSIONS


@kernel(void(matrix(i8), array(i8, 3), array(f8, 3), matrix(f8), matrix(f8)))
def traffic(
    requests: Ints, whole: Ints, rates: Floats, energy_j_per_bit: Floats, out: Floats
) -> None:
    """Write the traffic of every request; arguments as in `collectives_ns`."""
    phases, sent = np.zeros((MAX_PHASES, 4), np.int64), np.zeros(3)
    out[:] = 0.0
    for i in range(requests.shape[0]):
        row = requests[i]
        network = whole[row[PLAN]]
        everyone = np.prod(network[:, blocks.RANKS])
        chunks = chunks_of(row, everyone)
        count = lay_out(row[OP], row[BASELINE], network, chunk_bytes(row, everyone), phases)
        for p in range(count):
            d = phases[p, DIMENSION]
            phase_traffic(phases[p, PHASE_OP], phases[p, PAYLOAD], network[d], sent)
            crossed = sent[ENERGY_J]
            out[i, MESSAGES] += chunks * everyone * sent[MESSAGES]
            out[i, RANK_BYTES] += chunks * sent[RANK_BYTES]
            joules = 8.0 * crossed * energy_j_per_bit[row[PLAN], d]
            out[i, ENERGY_J] += chunks * everyone * joules
            is_ring = network[d, blocks.BLOCK] == blocks.RING_BLOCK
            on_one_link = crossed if is_ring else sent[RANK_BYTES]
            rate = rates[row[PLAN], d, blocks.BYTES_PER_NS]
            out[i, BUSY_NS + d] += chunks * on_one_link / rate
            over = rates[row[PLAN], d, blocks.OVERSUBSCRIPTION]
            most = busiest_bytes(phases[p, PHASE_OP], phases[p, PAYLOAD], network[d], over)
            if is_ring:  # chunks of a second queue go backwards
                most /= min(row[QUEUES], 2)
            out[i, LEAST_NS + d] += chunks * most / rate


@kernel(f8(i8, i8, array(i8), f8))
def busiest_bytes(op: int, payload: int, network: Ints, oversubscription: float) -> float:
    """Return the bytes of the busiest link in a phase, at the rate of a port.

    The root of a tree sends to each of its children, and the uplinks of a leaf carry the messages
    that leave the leaf: of a shift by `offset` ranks `min(offset, leaf)`, of an exchange over at
    least the leaf all. Rings and full meshes: the links of a broadcast's root, at least; zero for
    other collectives, whose links carry the mean of the ranks.

    >>> star = np.array([blocks.SWITCH_BLOCK, 8, codes.DIRECT, 0, 0])
    >>> busiest_bytes(codes.BROADCAST, 100, star, 1.0)
    700.0
    """
    algorithm, block = network[blocks.ALGORITHM], network[blocks.BLOCK]
    n, leaf = network[blocks.RANKS], network[blocks.LEAF]
    shape = shape_of(algorithm, op)
    if block != blocks.SWITCH_BLOCK and block != blocks.FAT_TREE_BLOCK:
        if op != codes.BROADCAST or shape == NO_TREE:
            return 0.0
        links = 2 if block == blocks.RING_BLOCK else n - 1
        return float(payload * -(-children(shape, n, 0) // links))
    if shape != NO_TREE:
        return float(payload * children(shape, n, 0))
    if block == blocks.SWITCH_BLOCK or n <= leaf or algorithm == codes.IN_NETWORK:
        return 0.0
    count, leaving = sends(algorithm, op, n), 0.0
    distinct = min(count, 2 * n)
    for step in range(distinct):
        offset = offset_of(algorithm, op, n, step)
        if algorithm == codes.HALVING_DOUBLING:
            crossing = leaf if offset >= leaf else 0
        else:
            crossing = min(min(offset, n - offset), leaf)
        leaving += crossing * message_of(algorithm, op, n, payload, step)
    if distinct > 0:
        leaving *= count / distinct
    return float(leaving * oversubscription / leaf)


@kernel(void(i8, i8, array(i8), array(f8)))
def phase_traffic(op: int, payload: int, network: Ints, out: Floats) -> None:
    """Write a rank's mean messages, bytes, and bytes times links crossed, in a phase.

    `network` has the columns of `blocks`; `out` has MESSAGES, RANK_BYTES and, for the bytes times
    links, ENERGY_J.
    """
    algorithm, block = network[blocks.ALGORITHM], network[blocks.BLOCK]
    n, leaf = network[blocks.RANKS], network[blocks.LEAF]
    shape = shape_of(algorithm, op)
    out[:] = 0.0
    if shape != NO_TREE:
        both_ways = 2.0 if op == ALL_REDUCE else 1.0
        out[MESSAGES] = both_ways * (n - 1) / n
        out[RANK_BYTES] = payload * out[MESSAGES]
        for position in range(n):
            for turn in range(children(shape, n, position)):
                apart = abs(child(shape, n, position, turn) - position)
                out[ENERGY_J] += both_ways * payload / n * hops(block, n, leaf, apart)
        return
    count = sends(algorithm, op, n)
    distinct = min(count, 2 * n)
    for step in range(distinct):
        message = message_of(algorithm, op, n, payload, step)
        out[RANK_BYTES] += message
        out[ENERGY_J] += message * hops(block, n, leaf, offset_of(algorithm, op, n, step))
    if distinct > 0:
        out[RANK_BYTES] *= count / distinct
        out[ENERGY_J] *= count / distinct
    out[MESSAGES] = max(count, 0)
