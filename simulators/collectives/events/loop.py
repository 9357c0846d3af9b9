"""The event loop: ranks and links act on one another in order of time.

Every link is a first-come-first-served server, or messages share links fairly (`links.py`).
Messages of all chunks of one dimension share its links.

A rank's chunks wait for a queue of their dimension, send what their step allows, and move on. A
packet is ready an endpoint delay after it was made and, in a reducing half, after the addition of
the received data: ASTRA-sim's packet counters say which receives are charged (`steps.py`). In a
tree a rank waits for all its children, adds their data one after the other, sends the sum to its
parent, and passes on data from its parent.

Where all ranks of a dimension behave alike, one rank is simulated for all, and what it sends to one
neighbor it receives from the other. Ties between messages of different ranks then break the same
way everywhere.
"""

from __future__ import annotations

from typing import Final

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms.steps import NO_TREE, child, children, parent
from simulators.collectives.events import state as at
from simulators.collectives.events.event_queue import LENGTH, TIME, pop, push
from simulators.collectives.events.links import advance, dispatch, flow, serve
from simulators.collectives.events.state import STATE, State
from simulators.collectives.topologies.blocks import log2, reduction_ns
from simulators.core.jit import boolean, i8, kernel, void

BELOW, ABOVE = range(2)
"""Slots of the messages that a rank of a tree receives."""


@kernel(void(STATE, i8, i8), no_refcount=True)
def insert(state: State, stream_row: int, now: int) -> None:
    """Create the next packet of a stream, ready after its endpoint and reduction delays."""
    mine, phases, settings = state.stream[stream_row], state.phases, state.settings
    p = mine[at.STAGE]
    plain, charged = mine[at.PLAIN], mine[at.CHARGED]
    if plain == 0 and charged == 0:
        plain, charged = phases.flight[p], phases.charged[p]
        mine[at.TOGGLE] = 1 - mine[at.TOGGLE]
    delay_ns = settings.endpoint_ns
    if plain > 0:
        plain -= 1
    else:
        charged -= 1
        op = phases.op[p]
        if op == codes.REDUCE_SCATTER or (op == codes.ALL_REDUCE and mine[at.TOGGLE] == 1):
            step = 0 if phases.is_uniform[p] else mine[at.INSERTED]
            delay_ns += reduction_ns(phases.bytes_of[p, step], settings.memory_bytes_per_s)
    mine[at.PLAIN], mine[at.CHARGED] = plain, charged
    mine[at.INSERTED] += 1
    push(state.queue, state.clock, now + delay_ns, at.READY + at.KINDS * stream_row)


@kernel(void(STATE, i8, i8, i8), no_refcount=True)
def join(state: State, rank: int, stream_row: int, p: int) -> None:
    """Append a stream to the queue of its phase."""
    line = line_of(state, rank, stream_row, p)
    state.stream[stream_row, :] = 0
    state.stream[stream_row, at.STAGE], state.stream[stream_row, at.TO_SEND] = p, at.WAITING
    state.follower[stream_row] = -1
    if state.head[line] < 0:
        state.head[line] = stream_row
    else:
        state.follower[state.tail[line]] = stream_row
    state.tail[line] = stream_row


@kernel(i8(STATE, i8, i8, i8), no_refcount=True)
def line_of(state: State, rank: int, stream_row: int, p: int) -> int:
    """Return the queue in which a stream of a rank waits for a phase."""
    queues = state.settings.queues
    lines = state.whole.shape[0] * queues
    turn = state.phases.turn_of[p, stream_row - rank * state.settings.streams]
    line: int = rank * lines + state.phases.axis[p] * queues + turn
    return line


@kernel(void(STATE, i8, i8), no_refcount=True)
def start(state: State, line: int, now: int) -> None:
    """Start the waiting streams of a queue in order of arrival, while servers are free."""
    while state.head[line] >= 0 and state.running[line] < state.settings.servers:
        stream_row = state.head[line]
        state.head[line] = state.follower[stream_row]
        state.running[line] += 1
        p = state.stream[stream_row, at.STAGE]
        state.stream[stream_row, at.TO_SEND] = state.phases.sends[p]
        if state.phases.shape[p] == NO_TREE:
            for _ in range(state.phases.flight[p]):
                insert(state, stream_row, now)
        else:
            _start_in_tree(state, stream_row, now)


@kernel(void(STATE, i8, i8), no_refcount=True)
def finish(state: State, stream_row: int, now: int) -> None:
    """End a stream's phase: append the stream to its next queue and start waiting streams."""
    rank, p = stream_row // state.settings.streams, state.stream[stream_row, at.STAGE]
    line = line_of(state, rank, stream_row, p)
    state.running[line] -= 1
    joined = -1
    if p + 1 < state.settings.phases:
        join(state, rank, stream_row, p + 1)
        joined = line_of(state, rank, stream_row, p + 1)
    else:
        state.stream[stream_row, at.TO_SEND] = at.WAITING
        state.clock[at.STREAMS_LEFT] -= 1
        state.report[at.FINISH_NS] = now
    for free in (line, joined):
        if free >= 0:
            start(state, free, now)


@kernel(void(STATE, i8, i8), no_refcount=True)
def receive(state: State, stream_row: int, now: int) -> None:
    """Record a received message, which releases the next packet of the stream."""
    state.stream[stream_row, at.RECEIVED] += 1
    insert(state, stream_row, now)


@kernel(boolean(STATE, i8, i8), no_refcount=True)
def send(state: State, stream_row: int, now: int) -> bool:
    """Send the messages that a ready packet allows; return whether the phase has ended."""
    mine, phases = state.stream[stream_row], state.phases
    p = mine[at.STAGE]
    mine[at.FREE] += 1
    algorithm, n, d = phases.algorithm[p], phases.ranks[p], phases.axis[p]
    tries = 1
    if algorithm == codes.DIRECT and phases.op[p] == codes.ALL_REDUCE and mine[at.TO_SEND] <= n - 1:
        if mine[at.RECEIVED] < n - 1:
            return False  # the second half waits for the whole first
        tries = phases.flight[p]
    rank = stream_row // state.settings.streams
    stream = stream_row - rank * state.settings.streams
    half = state.settings.queues // 2
    is_backwards = half > 0 and phases.turn_of[p, stream] >= half
    for _ in range(tries):
        step = mine[at.SENT]
        if mine[at.INSERTED] == step or mine[at.TO_SEND] == 0 or mine[at.FREE] == 0:
            break
        column = 0 if phases.is_steady[p] else step
        offset, slot = phases.offset_of[p, column], state.first_slot[d]
        size = phases.bytes_of[p, column]
        ahead = n - offset if is_backwards else offset
        if algorithm == codes.DIRECT:
            slot += offset
        elif algorithm == codes.HALVING_DOUBLING:
            slot += log2(offset)
            ahead = offset
            if not state.is_alike[d]:
                position = rank // state.strides[d] % n
                ahead = (position ^ offset) - position
                ahead += n * int(ahead < 0)
        state.matched[stream_row, slot] -= 1
        if state.matched[stream_row, slot] >= 0:
            push(state.queue, state.clock, now, at.RECEIVE + at.KINDS * stream_row)
        dispatch(state, now, rank, stream, d, ahead, size, slot, int(is_backwards))
        mine[at.SENT] += 1
        mine[at.TO_SEND] -= 1
        mine[at.FREE] -= 1
    has_ended: bool = mine[at.TO_SEND] == 0 and mine[at.FREE] == phases.flight[p]
    return has_ended


@kernel(i8(STATE, i8), no_refcount=True)
def _is_mirrored(state: State, stream_row: int) -> int:
    """Return whether a stream uses the mirror image of the tree, whose root is the last rank."""
    mirror = state.phases.mirror[state.stream[stream_row, at.STAGE]]
    if mirror == at.EVEN:
        return int(stream_row % state.settings.streams % 2 == 0)
    return int(mirror == at.ALL)


@kernel(i8(STATE, i8), no_refcount=True)
def _tree_position(state: State, stream_row: int) -> int:
    p, phases = state.stream[stream_row, at.STAGE], state.phases
    rank = stream_row // state.settings.streams
    position: int = rank // state.strides[phases.axis[p]] % phases.ranks[p]
    return phases.ranks[p] - 1 - position if _is_mirrored(state, stream_row) else position


@kernel(i8(STATE, i8), no_refcount=True)
def tree_slot(state: State, p: int) -> int:
    """Return the first slot of received messages in a tree; two visits have two pairs of slots."""
    slot: int = state.first_slot[state.phases.axis[p]] + 2 * int(state.phases.mirror[p] == at.NONE)
    return slot


@kernel(void(STATE, i8, i8))
def _start_in_tree(state: State, stream_row: int, now: int) -> None:
    """Start leaves, or the root of a broadcast; elsewhere handle messages that arrived early."""
    p, phases = state.stream[stream_row, at.STAGE], state.phases
    position = _tree_position(state, stream_row)
    slot = tree_slot(state, p)
    below = children(phases.shape[p], phases.ranks[p], position)
    reduces = phases.op[p] == codes.ALL_REDUCE
    begins = below == 0 if reduces else position == 0
    heard = BELOW if reduces and state.matched[stream_row, slot + BELOW] == below else ABOVE
    if begins:
        ready_ns = now + state.settings.endpoint_ns
        push(state.queue, state.clock, ready_ns, at.READY + at.KINDS * stream_row)
    elif state.matched[stream_row, slot + heard] > 0:
        receive_in_tree(state, stream_row, slot + heard, now)


@kernel(void(STATE, i8, i8, i8))
def receive_in_tree(state: State, stream_row: int, slot: int, now: int) -> None:
    """Add the data of all children, or take the data of the parent.

    Each is charged as one addition, as in the reference simulator: both children's data at once,
    and the parent's data once more. Leaves and broadcasts add nothing.
    """
    p, phases = state.stream[stream_row, at.STAGE], state.phases
    below = children(phases.shape[p], phases.ranks[p], _tree_position(state, stream_row))
    is_from_below = slot == tree_slot(state, p) + BELOW
    if is_from_below and state.matched[stream_row, slot] < below:
        return
    ready_ns = now + state.settings.endpoint_ns
    if phases.op[p] == codes.ALL_REDUCE and below > 0:
        ready_ns += reduction_ns(phases.bytes_of[p, 0], state.settings.memory_bytes_per_s)
    push(state.queue, state.clock, ready_ns, at.READY + at.KINDS * stream_row)


@kernel(boolean(STATE, i8, i8))
def send_in_tree(state: State, stream_row: int, now: int) -> bool:
    """Send to the parent, else to the children by rank; return whether the phase has ended."""
    p, phases = state.stream[stream_row, at.STAGE], state.phases
    shape, n, slot = phases.shape[p], phases.ranks[p], tree_slot(state, p)
    position, is_mirrored = _tree_position(state, stream_row), _is_mirrored(state, stream_row)
    if phases.op[p] == codes.ALL_REDUCE and state.stream[stream_row, at.SENT] == 0:
        state.stream[stream_row, at.SENT] = 1
        if position != 0:
            _send_along(state, stream_row, parent(n, position) - position, slot + BELOW, now)
            return False
    below = children(shape, n, position)
    for turn in range(below):
        to = child(shape, n, position, below - 1 - turn if is_mirrored else turn)
        _send_along(state, stream_row, to - position, slot + ABOVE, now)
    return True


@kernel(void(STATE, i8, i8, i8, i8), no_refcount=True)
def _send_along(state: State, stream_row: int, offset: int, slot: int, now: int) -> None:
    p, phases = state.stream[stream_row, at.STAGE], state.phases
    d, size = phases.axis[p], phases.bytes_of[p, 0]
    rank = stream_row // state.settings.streams
    ahead = (-offset if _is_mirrored(state, stream_row) else offset) % phases.ranks[p]
    dispatch(state, now, rank, stream_row % state.settings.streams, d, ahead, size, slot, 0)


FOREVER_NS: Final = float(1 << 62)
NO_STREAM: Final = -1


@kernel(void(STATE, i8))
def run(state: State, limit: int) -> None:
    """Simulate one collective and fill in the state's report; stop after `limit` link events."""
    _start_all(state)
    clock, report, event = state.clock, state.report, state.event
    capacity, reserve = state.queue.shape[0], state.settings.reserve
    now = 0
    while clock[LENGTH] + clock[at.FLYING] > 0 and report[at.LINK_EVENTS] < limit:
        if clock[LENGTH] + clock[at.FLYING] + reserve >= capacity or clock[at.SPARES] <= reserve:
            report[at.UNFINISHED] = at.NO_CAPACITY
            return
        following_ns = FOREVER_NS
        if clock[LENGTH] > 0:
            following_ns = state.queue[0, TIME]
        if clock[at.FLYING] > 0 and following_ns > now and flow(state, following_ns):
            continue
        pop(state.queue, clock, event)
        now = event[0]
        if state.settings.mode == at.SHARED and clock[at.FLYING] == 0:
            state.shared_until_ns[0] = now
        _process_event(state, event[1] & (at.KINDS - 1), event[1] >> at.KIND_BITS, now)
    report[at.UNFINISHED] = clock[at.STREAMS_LEFT]


@kernel(void(STATE), no_refcount=True)
def _start_all(state: State) -> None:
    streams, ranks = state.settings.streams, state.settings.ranks
    state.clock[at.STREAMS_LEFT] = ranks * streams
    for rank in range(ranks):
        for s in range(streams):
            join(state, rank, rank * streams + s, 0)
        first = line_of(state, rank, rank * streams, 0) - state.phases.turn_of[0, 0]
        for turn in range(state.settings.queues):
            start(state, first + turn, 0)


@kernel(void(STATE, i8, i8, i8), no_refcount=True)
def _process_event(state: State, what: int, index: int, now: int) -> None:
    if what == at.READY:
        is_tree = state.phases.shape[state.stream[index, at.STAGE]] != NO_TREE
        if send_in_tree(state, index, now) if is_tree else send(state, index, now):
            finish(state, index, now)
        return
    stream_row = index
    if what == at.HOP:
        state.report[at.LINK_EVENTS] += 1
        if advance(state, index):
            serve(state, index, now)
            return
        stream_row = _deliver(state, index, now)
    if stream_row >= 0:
        receive(state, stream_row, now)


@kernel(i8(STATE, i8, i8), no_refcount=True)
def _deliver(state: State, m: int, now: int) -> int:
    """Deliver a message; return its waiting stream, or NO_STREAM in trees and without a stream."""
    message = state.messages[m]
    slot = message[at.SLOT]
    stream_row = message[at.TO] * state.settings.streams + message[at.STREAM]
    state.spare[state.clock[at.SPARES]] = m
    state.clock[at.SPARES] += 1
    state.report[at.DELIVERED] += 1
    state.matched[stream_row, slot] += 1
    p = state.stream[stream_row, at.STAGE]
    if state.phases.shape[p] != NO_TREE and 0 <= slot - tree_slot(state, p) < 2:
        if state.stream[stream_row, at.TO_SEND] != at.WAITING:
            receive_in_tree(state, stream_row, slot, now)
        return NO_STREAM
    return stream_row if state.matched[stream_row, slot] <= 0 else NO_STREAM
