"""Every link is a first-come-first-served server, and every message waits for what is before it.

A message that starts on a link at t is at the next device at t + latency + bytes/bandwidth, and the
link is free again at t + bytes/bandwidth: store and forward, so on a switch both latency and
serialisation are paid twice. This is the congestion-aware model of ASTRA-sim (Won et al., 2023),
carried over to several dimensions.

Where all ranks are alike, what happens at one happens at all: one rank is simulated, and what it
sends to a neighbour it hears from the other. Ties between messages of different ranks are then
broken the same way everywhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.collectives.algorithms import ALL_REDUCE, DIRECT, HALVING_DOUBLING, REDUCE_SCATTER
from simulators.collectives.analytic import (
    ALGORITHM,
    BLOCK,
    BYTES_PER_NS,
    LATENCY_NS,
    LEAF,
    OVERSUBSCRIPTION,
    RANKS,
    WINDOW,
)
from simulators.collectives.heap import COUNTERS, LENGTH, pop, push
from simulators.collectives.phases import queue_of
from simulators.collectives.steps import in_flight, message_of, offset_of, reducing, sends
from simulators.collectives.wires import (
    FAT_TREE_BLOCK,
    FULL_BLOCK,
    RING_BLOCK,
    hops,
    log2,
    reduction_ns,
)
from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix, void

STAGE, INSERTED, SENT, FREE, TO_SEND, HEARD, PLAIN, CHARGED, TOGGLE = range(9)
"""What a rank knows of one of its streams."""
FIELDS: Final = 9
AT, TO, STREAM, AXIS, BYTES, HOPS_LEFT, TRACK, SLOT, OFFSET, STAGE_OF = range(10)
"""What is known of a message under way."""
MESSAGE_FIELDS: Final = 10
FINISH_NS, SENT_MESSAGES, DELIVERED, LINK_EVENTS, BUSIEST_NS, UNFINISHED = range(6)
"""What a run reports."""
NO_ROOM: Final = -1
"""Unfinished streams of a run that needs more room for events than it was given."""
REPORT: Final = 6
HOP, READY, HEAR = range(3)
"""Kinds of event: a message is at the next device, a packet is ready, an early message is heard."""
KIND_BITS: Final = 2
KINDS: Final = 1 << KIND_BITS
(
    ALGORITHM_OF, OP_OF, RANKS_OF, WINDOW_OF, AXIS_OF, SENDS_OF, CHARGED_OF, FLIGHT_OF, IS_UNIFORM,
) = range(9)  # fmt: skip
"""What is looked up about a phase."""
FACTS: Final = 9
UP, DOWN, LEAF_UP, LEAF_DOWN = range(4)
"""Links of a rank at a switch or fat tree; on a ring the first two are its two directions."""


@kernel(i8(i8, i8))
def links_of(block: int, ranks: int) -> int:
    """Return how many links a rank owns on one dimension."""
    if block == FULL_BLOCK:
        return ranks
    return 4 if block == FAT_TREE_BLOCK else 2


@kernel(i8(i8, i8, i8, i8, i8))
def _peer(rank: int, stride: int, ranks: int, offset: int, is_exchange: int) -> int:
    """Return the rank `offset` further along a dimension, or its partner of an exchange."""
    position = rank // stride % ranks
    other = position ^ offset if is_exchange else (position + offset) % ranks
    return rank + (other - position) * stride


@kernel(void(matrix(i8), matrix(i8), matrix(i8), matrix(i8), i8))
def _tabulate(facts: Ints, bytes_of: Ints, offset_at: Ints, phase: Ints, phases: int) -> None:
    """Write what the steps of every phase send and wait for, so that the loop only looks it up."""
    steps = bytes_of.shape[1]
    for p in range(phases):
        algorithm, op, ranks, window = (
            facts[p, ALGORITHM_OF], facts[p, OP_OF], facts[p, RANKS_OF], facts[p, WINDOW_OF]
        )  # fmt: skip
        facts[p, SENDS_OF] = sends(algorithm, op, ranks)
        facts[p, CHARGED_OF] = reducing(algorithm, op, ranks, window)
        facts[p, FLIGHT_OF] = in_flight(algorithm, op, ranks, window)
        facts[p, IS_UNIFORM] = int(algorithm != HALVING_DOUBLING)
        for step in range(steps):
            bytes_of[p, step] = message_of(algorithm, op, ranks, phase[p, 2], step)
            offset_at[p, step] = offset_of(algorithm, op, ranks, step)


@kernel(void(matrix(i8), array(i8), matrix(i8), i8, i8, i8, i8, matrix(i8), matrix(i8), f8))
def _insert(
    queue: Ints,
    clock: Ints,
    state: Ints,
    who: int,
    now: int,
    endpoint_ns: int,
    p: int,
    facts: Ints,
    bytes_of: Ints,
    memory_bytes_per_s: float,
) -> None:
    """Make the next packet of a stream; it is ready after the delays of its turn."""
    plain, charged = state[who, PLAIN], state[who, CHARGED]
    if plain == 0 and charged == 0:
        plain, charged = facts[p, FLIGHT_OF], facts[p, CHARGED_OF]
        state[who, TOGGLE] = 1 - state[who, TOGGLE]
    delay_ns = endpoint_ns
    if plain > 0:
        plain -= 1
    else:
        charged -= 1
        op = facts[p, OP_OF]
        if op == REDUCE_SCATTER or (op == ALL_REDUCE and state[who, TOGGLE] == 1):
            step = 0 if facts[p, IS_UNIFORM] else state[who, INSERTED]
            delay_ns += reduction_ns(bytes_of[p, step], memory_bytes_per_s)
    state[who, PLAIN], state[who, CHARGED] = plain, charged
    state[who, INSERTED] += 1
    push(queue, clock, now + delay_ns, READY + KINDS * who)


@kernel(
    void(
        matrix(i8), array(i8), matrix(i8), i8, i8, i8, i8, f8, matrix(i8), matrix(i8),
        array(i8), array(i8), array(i8),
    )
)  # fmt: skip
def _start(
    queue: Ints,
    clock: Ints,
    state: Ints,
    line: int,
    now: int,
    servers: int,
    endpoint_ns: int,
    memory_bytes_per_s: float,
    facts: Ints,
    bytes_of: Ints,
    head: Ints,
    follower: Ints,
    running: Ints,
) -> None:
    """Start the streams of a queue, in the order they came, while there is room."""
    while head[line] >= 0 and running[line] < servers:
        who = head[line]
        head[line] = follower[who]
        running[line] += 1
        p = state[who, STAGE]
        state[who, TO_SEND] = facts[p, SENDS_OF]
        for _ in range(facts[p, FLIGHT_OF]):
            _insert(
                queue, clock, state, who, now, endpoint_ns, p, facts, bytes_of, memory_bytes_per_s
            )


@kernel(
    void(
        array(i8), i8, i8, i8, i8, i8, f8, i8, i8, i8, i8, matrix(i8), matrix(f8), matrix(i8),
        array(i8), array(i8),
    )
)  # fmt: skip
def run(
    strides: Ints,
    ranks: int,
    streams: int,
    phases: int,
    active: int,
    queues: int,
    memory_bytes_per_s: float,
    endpoint_ns: int,
    alike: int,
    limit: int,
    slack: int,
    whole: Ints,
    rates: Floats,
    phase: Ints,
    half: Ints,
    report: Ints,
) -> None:
    """Simulate one collective and write a report.

    Args:
        strides: distance of neighbours on each dimension, in ranks.
        ranks: how many are simulated: all, or one that stands for all.
        streams: chunks.
        phases: of each chunk.
        active: chunks a dimension serves at once.
        queues: of each dimension.
        memory_bytes_per_s: of the memory that reductions use.
        endpoint_ns: before the first message and after every receive.
        alike: whether one rank stands for all.
        limit: events after which the run is given up.
        slack: how many times the usual number of events may wait at once.
        whole: per dimension: block, ranks, algorithm, window, leaf.
        rates: per dimension: bytes per ns, latency in ns, oversubscription.
        phase: per phase: dimension, op, payload.
        half: per phase, which queues it may use.
        report: filled in.
    """
    dimensions = whole.shape[0]
    servers = -(-active // queues)
    lines = dimensions * queues
    link_base = np.zeros(dimensions + 1, np.int64)
    slot_base = np.zeros(dimensions + 1, np.int64)
    widest = 1
    for d in range(dimensions):
        link_base[d + 1] = link_base[d] + links_of(whole[d, BLOCK], whole[d, RANKS])
        peers = 1
        if whole[d, ALGORITHM] == DIRECT:
            peers = whole[d, RANKS]
            widest = max(widest, peers)
        if whole[d, ALGORITHM] == HALVING_DOUBLING:
            peers = log2(whole[d, RANKS]) + 1
        slot_base[d + 1] = slot_base[d] + peers
    owned, slots = link_base[dimensions], slot_base[dimensions]
    free_at = np.zeros(ranks * owned, np.int64)
    busy_ns = np.zeros(ranks * owned, np.int64)
    matched = np.zeros((ranks * streams, slots), np.int32)
    state = np.zeros((ranks * streams, FIELDS), np.int64)
    head = np.full(ranks * lines, -1, np.int64)
    tail = np.full(ranks * lines, -1, np.int64)
    running = np.zeros(ranks * lines, np.int64)
    follower = np.full(ranks * streams, -1, np.int64)
    at_once = min(streams, lines * servers)
    room = slack * (64 + 2 * ranks * at_once * widest)
    queue = np.zeros((room, 3), np.int64)
    clock = np.zeros(COUNTERS, np.int64)
    messages = np.zeros((room, MESSAGE_FIELDS), np.int64)
    spare = np.arange(room)[::-1].copy()
    spares = room
    longest = 1
    facts = np.zeros((phases, FACTS), np.int64)
    turn_of = np.zeros((phases, streams), np.int64)
    for p in range(phases):
        d = phase[p, 0]
        facts[p, ALGORITHM_OF], facts[p, OP_OF] = whole[d, ALGORITHM], phase[p, 1]
        facts[p, RANKS_OF], facts[p, WINDOW_OF] = whole[d, RANKS], whole[d, WINDOW]
        facts[p, AXIS_OF] = d
        if whole[d, ALGORITHM] == DIRECT:
            longest = max(longest, 2 * whole[d, RANKS])
        if whole[d, ALGORITHM] == HALVING_DOUBLING:
            longest = max(longest, 2 * log2(whole[d, RANKS]) + 2)
        for s in range(streams):
            turn_of[p, s] = queue_of(half[p], queues, s)
    bytes_of = np.zeros((phases, longest), np.int64)
    offset_at = np.zeros((phases, longest), np.int64)
    _tabulate(facts, bytes_of, offset_at, phase, phases)
    leaving = np.zeros(widest + 1, np.int64)
    event = np.zeros(2, np.int64)
    lanes = np.zeros(2, np.int64)
    report[:] = 0
    left, now, events = ranks * streams, 0, 0

    for rank in range(ranks):
        for s in range(streams):
            who = rank * streams + s
            line = rank * lines + phase[0, 0] * queues + queue_of(half[0], queues, s)
            state[who, TO_SEND] = -1
            if head[line] < 0:
                head[line], tail[line] = who, who
            else:
                follower[tail[line]], tail[line] = who, who
        for turn in range(queues):
            line = rank * lines + phase[0, 0] * queues + turn
            _start(
                queue, clock, state, line, 0, servers, endpoint_ns, memory_bytes_per_s,
                facts, bytes_of, head, follower, running,
            )  # fmt: skip

    while clock[LENGTH] > 0 and events < limit:
        if clock[LENGTH] + widest * (at_once + 1) >= room or spares <= widest:
            report[UNFINISHED] = NO_ROOM
            return
        events += 1
        pop(queue, clock, event)
        now, what = event[0], event[1] & (KINDS - 1)
        index = event[1] >> KIND_BITS
        who, moved, has_ended, p = index, 0, False, 0
        if what == HOP:
            report[LINK_EVENTS] += 1
            hops_left = messages[index, HOPS_LEFT] - 1
            if hops_left > 0:
                messages[index, HOPS_LEFT] = hops_left
                d = messages[index, AXIS]
                if whole[d, BLOCK] == RING_BLOCK:
                    if alike == 0:
                        stage = messages[index, STAGE_OF]
                        at = _peer(
                            messages[index, AT], strides[d], whole[d, RANKS], 1 - 2 * stage, 0
                        )
                        messages[index, AT] = at
                        messages[index, TRACK] = at * owned + link_base[d] + stage
                else:
                    stage = DOWN
                    if hops_left > 1:
                        stage = LEAF_UP if hops_left == 3 else LEAF_DOWN
                    messages[index, STAGE_OF] = stage
                    messages[index, TRACK] = messages[index, TO] * owned + link_base[d] + stage
                leaving[0], moved = index, 1
            else:
                who, slot = messages[index, TO], messages[index, SLOT]
                who = who * streams + messages[index, STREAM]
                spare[spares] = index
                spares += 1
                report[DELIVERED] += 1
                matched[who, slot] += 1
                if matched[who, slot] > 0:
                    continue  # not asked for yet
                what = HEAR
        if what == HEAR:
            p = state[who, STAGE]
            state[who, HEARD] += 1
            _insert(
                queue, clock, state, who, now, endpoint_ns, p, facts, bytes_of, memory_bytes_per_s
            )
            continue
        if what == READY:
            p = state[who, STAGE]
            state[who, FREE] += 1
            algorithm, n, d = facts[p, ALGORITHM_OF], facts[p, RANKS_OF], facts[p, AXIS_OF]
            window = facts[p, FLIGHT_OF]
            tries = 1
            if (
                algorithm == DIRECT
                and facts[p, OP_OF] == ALL_REDUCE
                and state[who, TO_SEND] <= n - 1
            ):
                if state[who, HEARD] < n - 1:
                    continue  # the second half waits for the whole first
                tries = window
            rank, s = 0, who
            if alike == 0:
                rank = who // streams
                s = who - rank * streams
            turn = turn_of[p, s]
            is_backwards = queues > 1 and turn >= queues // 2
            for _ in range(tries):
                step = state[who, SENT]
                if (
                    state[who, INSERTED] == step
                    or state[who, TO_SEND] == 0
                    or state[who, FREE] == 0
                ):
                    break
                offset, size, slot = 1, bytes_of[p, 0], slot_base[d]
                if algorithm == DIRECT:
                    offset = offset_at[p, step]
                    slot += offset
                elif algorithm == HALVING_DOUBLING:
                    offset, size = offset_at[p, step], bytes_of[p, step]
                    slot += log2(offset)
                block = whole[d, BLOCK]
                ahead = n - offset if is_backwards else offset
                to = rank
                if alike == 0:
                    to = _peer(rank, strides[d], n, ahead, int(algorithm == HALVING_DOUBLING))
                    ahead = (to // strides[d] - rank // strides[d]) % n
                elif algorithm == HALVING_DOUBLING:
                    ahead = offset
                track = UP
                if block == FULL_BLOCK:
                    track = ahead
                elif block == RING_BLOCK:
                    track = 0 if ahead < n - ahead or (2 * ahead == n and not is_backwards) else 1
                spares -= 1
                m = spare[spares]
                messages[m, AT], messages[m, TO], messages[m, STREAM] = rank, to, s
                messages[m, AXIS], messages[m, BYTES], messages[m, SLOT] = d, size, slot
                messages[m, HOPS_LEFT] = hops(block, n, whole[d, LEAF], offset)
                messages[m, OFFSET], messages[m, STAGE_OF] = offset, track
                messages[m, TRACK] = rank * owned + link_base[d] + track
                report[SENT_MESSAGES] += 1
                leaving[moved] = m
                moved += 1
                matched[who, slot] -= 1
                if matched[who, slot] >= 0:
                    push(queue, clock, now, HEAR + KINDS * who)
                state[who, SENT] += 1
                state[who, TO_SEND] -= 1
                state[who, FREE] -= 1
            has_ended = state[who, TO_SEND] == 0 and state[who, FREE] == window
        for i in range(moved):
            # Every message that leaves now takes its next link, after those before it.
            m = leaving[i]
            d = messages[m, AXIS]
            rate = rates[d, BYTES_PER_NS]
            if whole[d, BLOCK] == FAT_TREE_BLOCK and messages[m, STAGE_OF] >= LEAF_UP:
                far = min(messages[m, OFFSET], whole[d, RANKS] - messages[m, OFFSET])
                share = whole[d, LEAF] / (rates[d, OVERSUBSCRIPTION] * min(far, whole[d, LEAF]))
                rate = min(rate, rate * share)
            link = messages[m, TRACK]
            start = max(now, free_at[link])
            serial = messages[m, BYTES] / rate
            free_at[link] = start + int(serial)
            busy_ns[link] += int(serial)
            push(queue, clock, start + int(rates[d, LATENCY_NS] + serial), HOP + KINDS * m)
        if not has_ended:
            continue
        d = facts[p, AXIS_OF]
        rank = who // streams
        s = who - rank * streams
        turn = turn_of[p, s]
        line = rank * lines + d * queues + turn
        running[line] -= 1
        lanes[0], lanes[1] = line, -1
        if p + 1 < phases:
            state[who, :] = 0
            state[who, STAGE] = p + 1
            state[who, TO_SEND] = -1
            lanes[1] = rank * lines + facts[p + 1, AXIS_OF] * queues + turn_of[p + 1, s]
            follower[who] = -1
            if head[lanes[1]] < 0:
                head[lanes[1]], tail[lanes[1]] = who, who
            else:
                follower[tail[lanes[1]]], tail[lanes[1]] = who, who
        else:
            left -= 1
            report[FINISH_NS] = now
        for i in range(2):
            if lanes[i] >= 0:
                _start(
                    queue, clock, state, lanes[i], now, servers, endpoint_ns,
                    memory_bytes_per_s, facts, bytes_of, head, follower, running,
                )  # fmt: skip
    report[UNFINISHED] = left
    report[BUSIEST_NS] = np.max(busy_ns)
