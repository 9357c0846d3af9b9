"""Without contention a collective is a flow shop: chunks queue for phases of known length.

Each dimension serves a few chunks at once and the rest wait in the order they came; a chunk that
ends a phase joins the tail of the next one's queue. The time of a phase comes from its algorithm.
This is the congestion-unaware model of ASTRA-sim, in whole nanoseconds.
"""

from __future__ import annotations

import numpy as np

from simulators.collectives.algorithms import (
    DIRECT,
    DOUBLE_BINARY_TREE,
    HALVING_DOUBLING,
    IMPOSSIBLE,
    RING,
)
from simulators.collectives.algorithms.direct import phase_ns as direct_ns
from simulators.collectives.algorithms.double_binary_tree import phase_ns as tree_ns
from simulators.collectives.algorithms.halving_doubling import phase_ns as halving_ns
from simulators.collectives.algorithms.in_network import phase_ns as in_network_ns
from simulators.collectives.algorithms.ring import phase_ns as ring_ns
from simulators.collectives.phases import MAX_PHASES, lay_out, queue_of, split
from simulators.collectives.wires import Wire
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

BLOCK, RANKS, ALGORITHM, WINDOW, LEAF = range(5)
"""Columns of a network's whole numbers, a row per dimension."""
BYTES_PER_NS, LATENCY_NS, OVERSUBSCRIPTION = range(3)
"""Columns of its other numbers."""
PLAN, OP, SIZE, SPLITS, ACTIVE, QUEUES, ENDPOINT_NS, BASELINE = range(8)
"""Columns of a request."""


@kernel(i8(i8, i8, array(i8), array(f8), i8, f8))
def phase_ns(
    op: int, payload: int, whole: Ints, rates: Floats, endpoint_ns: int, memory_bytes_per_s: float
) -> int:
    """Return the time of one phase on one dimension, by whatever algorithm it uses."""
    wire = Wire(
        whole[BLOCK], whole[RANKS], whole[LEAF], rates[OVERSUBSCRIPTION], rates[BYTES_PER_NS],
        rates[LATENCY_NS],
    )  # fmt: skip
    window, memory = whole[WINDOW], memory_bytes_per_s
    if whole[ALGORITHM] == RING:
        return ring_ns(wire, op, window, payload, endpoint_ns, memory)
    if whole[ALGORITHM] == DIRECT:
        return direct_ns(wire, op, window, payload, endpoint_ns, memory)
    if whole[ALGORITHM] == HALVING_DOUBLING:
        return halving_ns(wire, op, window, payload, endpoint_ns, memory)
    if whole[ALGORITHM] == DOUBLE_BINARY_TREE:
        return tree_ns(wire, op, window, payload, endpoint_ns, memory)
    return in_network_ns(wire, op, window, payload, endpoint_ns, memory)


@kernel(i8(i8, i8, array(i8), array(i8), array(i8), i8, i8))
def flow_shop_ns(
    streams: int,
    phases: int,
    dimension: Ints,
    half: Ints,
    duration: Ints,
    active: int,
    queues: int,
) -> int:
    """Return when the last of `streams` equal chunks has passed all phases."""
    servers = -(-active // queues)
    if phases == 1:
        lanes = 1 + queue_of(half[0], queues, max(1, queues // 2) - 1) if half[0] else queues
        longest = -(-streams // lanes)
        return -(-longest // servers) * int(duration[0])
    lines = (int(np.max(dimension[:phases])) + 1) * queues
    head = np.full(lines, -1, np.int64)
    tail = np.full(lines, -1, np.int64)
    running = np.zeros(lines, np.int64)
    follower = np.full(streams, -1, np.int64)
    stage = np.zeros(streams, np.int64)
    room = min(streams, lines * servers)
    busy_until = np.zeros(room, np.int64)
    order = np.zeros(room, np.int64)
    who = np.zeros(room, np.int64)
    busy, sequence, now, left = 0, 0, 0, streams
    for s in range(streams):
        line = dimension[0] * queues + queue_of(half[0], queues, s)
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
        left_line = dimension[p] * queues + queue_of(half[p], queues, s)
        running[left_line] -= 1
        stage[s] = p + 1
        joined_line = -1
        if p + 1 < phases:
            joined_line = dimension[p + 1] * queues + queue_of(half[p + 1], queues, s)
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

    Args:
        requests: a row per collective: which network, op, size, splits, active chunks, queues,
            endpoint delay and whether the baseline order of phases is kept.
        memory_bytes_per_s: of the local memory that reductions use.
        whole: per network and dimension: block, ranks, algorithm, window, leaf.
        rates: per network and dimension: bytes per ns, latency in ns, oversubscription.
        out: nanoseconds.
    """
    dimension = np.zeros(MAX_PHASES, np.int64)
    ops = np.zeros(MAX_PHASES, np.int64)
    payload = np.zeros(MAX_PHASES, np.int64)
    half = np.zeros(MAX_PHASES, np.int64)
    duration = np.zeros(MAX_PHASES, np.int64)
    cut = np.zeros(2, np.int64)
    for i in range(requests.shape[0]):
        row = requests[i]
        network, rate = whole[row[PLAN]], rates[row[PLAN]]
        ranks = network[:, RANKS].copy()
        split(row[OP], row[SIZE], row[SPLITS], np.prod(ranks), cut)
        phases = lay_out(row[OP], row[BASELINE], ranks, cut[0], dimension, ops, payload, half)
        out[i] = 0
        for p in range(phases):
            d = dimension[p]
            duration[p] = phase_ns(
                ops[p], payload[p], network[d], rate[d], row[ENDPOINT_NS], memory_bytes_per_s[i]
            )
            if duration[p] == IMPOSSIBLE:
                out[i] = IMPOSSIBLE
        if phases > 0 and out[i] != IMPOSSIBLE:
            out[i] = flow_shop_ns(
                cut[1], phases, dimension, half, duration, row[ACTIVE], row[QUEUES]
            )
