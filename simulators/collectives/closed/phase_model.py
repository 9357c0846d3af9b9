"""Time of a collective without contention: chunks queue for phases of known length.

Each dimension serves a few chunks at once and the rest wait in the order they came; a chunk that
ends a phase joins the tail of the next one's queue. The time of a phase comes from its algorithm.
This is the congestion-unaware model of ASTRA-sim, in whole nanoseconds.
"""

from __future__ import annotations

import numpy as np

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms import Phase
from simulators.collectives.algorithms.direct import phase_ns as direct_ns
from simulators.collectives.algorithms.double_binary_tree import phase_ns as tree_ns
from simulators.collectives.algorithms.halving_doubling import phase_ns as halving_ns
from simulators.collectives.algorithms.in_network import phase_ns as in_network_ns
from simulators.collectives.algorithms.ring import phase_ns as ring_ns
from simulators.collectives.closed import phases as at
from simulators.collectives.closed.phases import chunk_bytes, chunks_of, lay_out, queue_of
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.blocks import wire_of
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void


@kernel(i8(i8, i8, array(i8), array(f8), i8, f8))
def phase_ns(
    op: int, payload: int, whole: Ints, rates: Floats, endpoint_ns: int, memory_bytes_per_s: float
) -> int:
    """Return the time of a phase on a dimension, by the algorithm of the dimension."""
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
    """Return when the last of so many equal chunks has passed all phases."""
    servers = -(-active // queues)
    if len(phases) == 1:
        half = phases[0, at.HALF]
        lanes = 1 + queue_of(half, queues, max(1, queues // 2) - 1) if half else queues
        longest = -(-chunks // lanes)
        return -(-longest // servers) * int(duration[0])
    lines = (int(np.max(phases[:, at.DIMENSION])) + 1) * queues
    head = np.full(lines, -1, np.int64)
    tail = np.full(lines, -1, np.int64)
    running = np.zeros(lines, np.int64)
    follower = np.full(chunks, -1, np.int64)
    stage = np.zeros(chunks, np.int64)
    slots = min(chunks, lines * servers)
    busy_until = np.zeros(slots, np.int64)
    order = np.zeros(slots, np.int64)
    who = np.zeros(slots, np.int64)
    busy, sequence, now, left = 0, 0, 0, chunks
    for s in range(chunks):
        line = phases[0, at.DIMENSION] * queues + queue_of(phases[0, at.HALF], queues, s)
        if running[line] < servers:
            running[line] += 1
            busy_until[busy], order[busy], who[busy] = duration[0], sequence, s
            busy, sequence = busy + 1, sequence + 1
        elif head[line] < 0:
            head[line], tail[line] = s, s
        else:
            follower[tail[line]], tail[line] = s, s
    while left > 0:
        first = 0
        for i in range(1, busy):
            if busy_until[i] < busy_until[first] or (
                busy_until[i] == busy_until[first] and order[i] < order[first]
            ):
                first = i
        s, now = who[first], busy_until[first]
        busy -= 1
        busy_until[first], order[first], who[first] = busy_until[busy], order[busy], who[busy]
        p = stage[s]
        left_line = phases[p, at.DIMENSION] * queues + queue_of(phases[p, at.HALF], queues, s)
        running[left_line] -= 1
        p += 1
        stage[s] = p
        joined_line = -1
        if p < len(phases):
            joined_line = phases[p, at.DIMENSION] * queues + queue_of(phases[p, at.HALF], queues, s)
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
                order[busy], who[busy] = sequence, starting
                busy, sequence = busy + 1, sequence + 1
    return now


@kernel(void(matrix(i8), array(f8), array(i8, 3), array(f8, 3), array(i8)))
def collectives_ns(
    requests: Ints, memory_bytes_per_s: Floats, whole: Ints, rates: Floats, out: Ints
) -> None:
    """Write the time of every request, or IMPOSSIBLE.

    Columns of `requests` are as of `phases`, those of networks as of `blocks`; `out` is in
    nanoseconds.
    """
    phases, duration = np.zeros((at.MAX_PHASES, 4), np.int64), np.zeros(at.MAX_PHASES, np.int64)
    for i in range(requests.shape[0]):
        row = requests[i]
        network, rate = whole[row[at.PLAN]], rates[row[at.PLAN]]
        everyone = np.prod(network[:, blocks.RANKS])
        count = lay_out(row[at.OP], row[at.BASELINE], network, chunk_bytes(row, everyone), phases)
        out[i] = 0
        for p in range(count):
            d = phases[p, at.DIMENSION]
            duration[p] = phase_ns(
                phases[p, at.PHASE_OP],
                phases[p, at.PAYLOAD],
                network[d],
                rate[d],
                row[at.ENDPOINT_NS],
                memory_bytes_per_s[i],
            )
            if duration[p] == codes.IMPOSSIBLE:
                out[i] = codes.IMPOSSIBLE
        if count > 0 and out[i] != codes.IMPOSSIBLE:
            chunks = chunks_of(row, everyone)
            out[i] = flow_shop_ns(chunks, phases[:count], duration, row[at.ACTIVE], row[at.QUEUES])
