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
AT, TO, STREAM, AXIS, BYTES, HOPS_LEFT, TRACK, SLOT, OFFSET = range(9)
"""What is known of a message under way."""
MESSAGE_FIELDS: Final = 9
FINISH_NS, SENT_MESSAGES, DELIVERED, LINK_EVENTS, BUSIEST_NS, UNFINISHED = range(6)
"""What a run reports."""
REPORT: Final = 6
HOP, READY, HEAR = range(3)
"""Kinds of event: a message is at the next device, a packet is ready, an early message is heard."""
KINDS: Final = 4
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


@kernel(void(matrix(i8), array(i8), matrix(i8), i8, i8, i8, array(i8), array(i8), f8))
def _insert(
    queue: Ints,
    clock: Ints,
    state: Ints,
    who: int,
    now: int,
    endpoint_ns: int,
    whole: Ints,
    phase: Ints,
    memory_bytes_per_s: float,
) -> None:
    """Make the next packet of a stream; it is ready after the delays of its turn."""
    algorithm, ranks, op = whole[ALGORITHM], whole[RANKS], phase[1]
    if state[who, PLAIN] == 0 and state[who, CHARGED] == 0:
        state[who, PLAIN] = in_flight(algorithm, op, ranks, whole[WINDOW])
        state[who, CHARGED] = reducing(algorithm, op, ranks, whole[WINDOW])
        state[who, TOGGLE] = 1 - state[who, TOGGLE]
    delay_ns = endpoint_ns
    if state[who, PLAIN] > 0:
        state[who, PLAIN] -= 1
    else:
        state[who, CHARGED] -= 1
        if op == REDUCE_SCATTER or (op == ALL_REDUCE and state[who, TOGGLE] == 1):
            message = message_of(algorithm, op, ranks, phase[2], state[who, INSERTED])
            delay_ns += reduction_ns(message, memory_bytes_per_s)
    state[who, INSERTED] += 1
    push(queue, clock, now + delay_ns, READY + KINDS * who)


@kernel(void(matrix(i8), array(i8), matrix(i8), i8, i8, array(i8), array(f8), array(i8), array(i8)))
def _cross(
    queue: Ints,
    clock: Ints,
    messages: Ints,
    m: int,
    now: int,
    whole: Ints,
    rates: Floats,
    free_at: Ints,
    busy_ns: Ints,
) -> None:
    """Put a message on its next link: it starts when those before it have left."""
    message = messages[m]
    rate, latency, size = rates[BYTES_PER_NS], rates[LATENCY_NS], message[BYTES]
    if whole[BLOCK] == FAT_TREE_BLOCK and message[TRACK] % 4 >= LEAF_UP:
        leaving = min(min(message[OFFSET], whole[RANKS] - message[OFFSET]), whole[LEAF])
        rate = min(rate, rate * whole[LEAF] / (rates[OVERSUBSCRIPTION] * leaving))
    link = message[TRACK]
    start = max(now, free_at[link])
    serial_ns = int(size / rate)
    free_at[link] = start + serial_ns
    busy_ns[link] += serial_ns
    push(queue, clock, start + int(latency + size / rate), HOP + KINDS * m)


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
    whole: Ints,
    phase: Ints,
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
        d = phase[p, 0]
        algorithm, n, op = whole[d, ALGORITHM], whole[d, RANKS], phase[p, 1]
        state[who, TO_SEND] = sends(algorithm, op, n)
        for _ in range(in_flight(algorithm, op, n, whole[d, WINDOW])):
            _insert(
                queue, clock, state, who, now, endpoint_ns, whole[d], phase[p],
                memory_bytes_per_s,
            )  # fmt: skip


@kernel(
    void(
        array(i8), i8, i8, i8, i8, i8, f8, i8, i8, i8, matrix(i8), matrix(f8), matrix(i8),
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
    room = 64 + 2 * ranks * at_once * widest
    queue = np.zeros((room, 3), np.int64)
    clock = np.zeros(COUNTERS, np.int64)
    messages = np.zeros((room, MESSAGE_FIELDS), np.int64)
    spare = np.arange(room)[::-1].copy()
    spares = room
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
                whole, phase, head, follower, running,
            )  # fmt: skip

    while clock[LENGTH] > 0 and events < limit:
        if clock[LENGTH] + spare.size - spares + 2 * widest + 2 * at_once + 8 > room or (
            spares < widest + 2
        ):
            grown = 2 * room
            wider = np.zeros((grown, 3), np.int64)
            wider[:room] = queue
            queue = wider
            more = np.zeros((grown, MESSAGE_FIELDS), np.int64)
            more[:room] = messages
            messages = more
            stack = np.zeros(grown, np.int64)
            stack[:spares] = spare[:spares]
            stack[spares : spares + grown - room] = np.arange(room, grown)
            spare, spares, room = stack, spares + grown - room, grown
        events += 1
        pop(queue, clock, event)
        now, what = event[0], event[1] % KINDS
        index = event[1] // KINDS
        who = index
        if what == HOP:
            message = messages[index]
            report[LINK_EVENTS] += 1
            message[HOPS_LEFT] -= 1
            d = message[AXIS]
            if message[HOPS_LEFT] > 0:
                block = whole[d, BLOCK]
                if block == RING_BLOCK:
                    if alike == 0:
                        way = 1 if (message[TRACK] - link_base[d]) % owned == 0 else -1
                        message[AT] = _peer(
                            message[AT], strides[d], whole[d, RANKS], way, 0
                        )  # fmt: skip
                        turn_to = 0 if way == 1 else 1
                        message[TRACK] = message[AT] * owned + link_base[d] + turn_to
                elif message[HOPS_LEFT] == 1:
                    message[TRACK] = message[TO] * owned + link_base[d] + DOWN
                else:
                    stage = LEAF_UP if message[HOPS_LEFT] == 3 else LEAF_DOWN
                    message[TRACK] = message[TO] * owned + link_base[d] + stage
                _cross(queue, clock, messages, index, now, whole[d], rates[d], free_at, busy_ns)
                continue
            who = message[TO] * streams + message[STREAM]
            slot = message[SLOT]
            spare[spares] = index
            spares += 1
            report[DELIVERED] += 1
            matched[who, slot] += 1
            if matched[who, slot] > 0:
                continue  # not asked for yet
            what = HEAR
        p = state[who, STAGE]
        d, op, payload = phase[p, 0], phase[p, 1], phase[p, 2]
        if what == HEAR:
            state[who, HEARD] += 1
            _insert(
                queue, clock, state, who, now, endpoint_ns, whole[d], phase[p],
                memory_bytes_per_s,
            )  # fmt: skip
            continue
        state[who, FREE] += 1
        algorithm, n = whole[d, ALGORITHM], whole[d, RANKS]
        window = in_flight(algorithm, op, n, whole[d, WINDOW])
        tries = 1
        if algorithm == DIRECT and op == ALL_REDUCE and state[who, TO_SEND] <= n - 1:
            if state[who, HEARD] < n - 1:
                continue  # the second half waits for the whole first
            tries = window
        rank, s = who // streams, who % streams
        turn = queue_of(half[p], queues, s)
        is_backwards = queues > 1 and turn >= queues // 2
        for _ in range(tries):
            if (
                state[who, INSERTED] == state[who, SENT]
                or state[who, TO_SEND] == 0
                or state[who, FREE] == 0
            ):
                break
            step = state[who, SENT]
            offset = offset_of(algorithm, op, n, step)
            slot = slot_base[d]
            if algorithm == DIRECT:
                slot += offset
            if algorithm == HALVING_DOUBLING:
                slot += log2(offset)
            spares -= 1
            m = spare[spares]
            message = messages[m]
            signed = n - offset if is_backwards else offset
            to = rank
            if alike == 0:
                to = _peer(rank, strides[d], n, signed, int(algorithm == HALVING_DOUBLING))
            message[AT], message[TO], message[STREAM], message[AXIS] = rank, to, s, d
            message[BYTES] = message_of(algorithm, op, n, payload, step)
            message[HOPS_LEFT] = hops(whole[d, BLOCK], n, whole[d, LEAF], offset)
            message[SLOT], message[OFFSET] = slot, offset
            track = UP
            if whole[d, BLOCK] == FULL_BLOCK:
                track = signed
                if alike == 0:
                    track = (to // strides[d] - rank // strides[d]) % n
            if whole[d, BLOCK] == RING_BLOCK:
                ahead = signed
                if alike == 0:
                    ahead = (to // strides[d] - rank // strides[d]) % n
                elif algorithm == HALVING_DOUBLING:
                    ahead = offset
                track = 0 if ahead <= n - ahead else 1
                if is_backwards and 2 * ahead == n:
                    track = 1
            message[TRACK] = rank * owned + link_base[d] + track
            report[SENT_MESSAGES] += 1
            _cross(queue, clock, messages, m, now, whole[d], rates[d], free_at, busy_ns)
            matched[who, slot] -= 1
            if matched[who, slot] >= 0:
                push(queue, clock, now, HEAR + KINDS * who)
            state[who, SENT] += 1
            state[who, TO_SEND] -= 1
            state[who, FREE] -= 1
        if state[who, TO_SEND] > 0 or state[who, FREE] != window:
            continue
        line = rank * lines + d * queues + turn
        running[line] -= 1
        lanes[0], lanes[1] = line, -1
        if p + 1 < phases:
            state[who, :] = 0
            state[who, STAGE] = p + 1
            state[who, TO_SEND] = -1
            following = queue_of(half[p + 1], queues, s)
            lanes[1] = rank * lines + phase[p + 1, 0] * queues + following
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
                    memory_bytes_per_s, whole, phase, head, follower, running,
                )  # fmt: skip
    report[UNFINISHED] = left
    report[BUSIEST_NS] = np.max(busy_ns)
