"""The event loop: ranks and links act on one another in order of time.

Every link is a first-come-first-served server, or messages share links fairly (`links.py`); every
rank works on its chunks in turn (`streams.py`). Messages of one dimension meet on its links,
whatever chunk they belong to.

Where all ranks of a dimension are alike, what happens at one happens at all: one is simulated, and
what it sends to a neighbour it hears from the other. Ties between messages of different ranks are
then broken the same way everywhere.
"""

from __future__ import annotations

from typing import Final

from simulators.collectives.algorithms.trees import NO_TREE
from simulators.collectives.events import state as at
from simulators.collectives.events.event_queue import LENGTH, TIME, pop
from simulators.collectives.events.links import flow, pass_on, serve
from simulators.collectives.events.state import STATE, State
from simulators.collectives.events.streams import (
    finish,
    hear,
    hear_in_tree,
    join,
    line_of,
    send,
    send_in_tree,
    start,
    tree_slot,
)
from simulators.core.jit import i8, kernel, void

FOREVER_NS: Final = float(1 << 62)
NOBODY: Final = -1


@kernel(void(STATE, i8))
def run(state: State, limit: int) -> None:
    """Simulate one collective and fill in the state's report; give up after `limit` link events."""
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
        _happen(state, event[1] & (at.KINDS - 1), event[1] >> at.KIND_BITS, now)
    report[at.UNFINISHED] = clock[at.STREAMS_LEFT]


@kernel(void(STATE), no_refcount=True)
def _start_all(state: State) -> None:
    """Queue all streams of all ranks for their first phase, and start those with a free server."""
    streams, ranks = state.settings.streams, state.settings.ranks
    state.clock[at.STREAMS_LEFT] = ranks * streams
    for rank in range(ranks):
        for s in range(streams):
            join(state, rank, rank * streams + s, 0)
        first = line_of(state, rank, rank * streams, 0) - state.phases.turn_of[0, 0]
        for turn in range(state.settings.queues):
            start(state, first + turn, 0)


@kernel(void(STATE, i8, i8, i8), no_refcount=True)
def _happen(state: State, what: int, index: int, now: int) -> None:
    """Let one event happen: to a message, or to a stream of a rank."""
    if what == at.READY:
        is_tree = state.phases.shape[state.stream[index, at.STAGE]] != NO_TREE
        if send_in_tree(state, index, now) if is_tree else send(state, index, now):
            finish(state, index, now)
        return
    who = index
    if what == at.HOP:
        state.report[at.LINK_EVENTS] += 1
        if pass_on(state, index):
            serve(state, index, now)
            return
        who = _deliver(state, index, now)
    if who >= 0:
        hear(state, who, now)


@kernel(i8(STATE, i8, i8), no_refcount=True)
def _deliver(state: State, m: int, now: int) -> int:
    """Return the stream that waited for a message outside trees; one not yet asked for waits."""
    message = state.messages[m]
    slot = message[at.SLOT]
    who = message[at.TO] * state.settings.streams + message[at.STREAM]
    state.spare[state.clock[at.SPARES]] = m
    state.clock[at.SPARES] += 1
    state.report[at.DELIVERED] += 1
    state.matched[who, slot] += 1
    p = state.stream[who, at.STAGE]
    if state.phases.shape[p] != NO_TREE and 0 <= slot - tree_slot(state, p) < 2:
        if state.stream[who, at.TO_SEND] != at.WAITING:
            hear_in_tree(state, who, slot, now)
        return NOBODY
    return who if state.matched[who, slot] <= 0 else NOBODY
