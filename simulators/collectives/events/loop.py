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
from simulators.collectives.events.state import WORLD, World
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


@kernel(void(WORLD, i8))
def run(world: World, limit: int) -> None:
    """Simulate one collective and fill in the world's report; give up after `limit` link events."""
    _start_all(world)
    clock, report, event = world.clock, world.report, world.event
    room, reserve = world.queue.shape[0], world.settings.reserve
    now = 0
    while clock[LENGTH] + clock[at.FLYING] > 0 and report[at.LINK_EVENTS] < limit:
        if clock[LENGTH] + clock[at.FLYING] + reserve >= room or clock[at.SPARES] <= reserve:
            report[at.UNFINISHED] = at.NO_ROOM
            return
        following_ns = FOREVER_NS
        if clock[LENGTH] > 0:
            following_ns = world.queue[0, TIME]
        if clock[at.FLYING] > 0 and following_ns > now and flow(world, following_ns):
            continue
        pop(world.queue, clock, event)
        now = event[0]
        if world.settings.mode == at.SHARED and clock[at.FLYING] == 0:
            world.shared_until_ns[0] = now
        _happen(world, event[1] & (at.KINDS - 1), event[1] >> at.KIND_BITS, now)
    report[at.UNFINISHED] = clock[at.STREAMS_LEFT]


@kernel(void(WORLD), borrows=True)
def _start_all(world: World) -> None:
    """Queue all streams of all ranks for their first phase, and start those that have room."""
    streams, ranks = world.settings.streams, world.settings.ranks
    world.clock[at.STREAMS_LEFT] = ranks * streams
    for rank in range(ranks):
        for s in range(streams):
            join(world, rank, rank * streams + s, 0)
        first = line_of(world, rank, rank * streams, 0) - world.phases.turn_of[0, 0]
        for turn in range(world.settings.queues):
            start(world, first + turn, 0)


@kernel(void(WORLD, i8, i8, i8), borrows=True)
def _happen(world: World, what: int, index: int, now: int) -> None:
    """Let one event happen: to a message, or to a stream of a rank."""
    if what == at.READY:
        is_tree = world.phases.shape[world.state[index, at.STAGE]] != NO_TREE
        if send_in_tree(world, index, now) if is_tree else send(world, index, now):
            finish(world, index, now)
        return
    who = index
    if what == at.HOP:
        world.report[at.LINK_EVENTS] += 1
        if pass_on(world, index):
            serve(world, index, now)
            return
        who = _deliver(world, index, now)
    if who >= 0:
        hear(world, who, now)


@kernel(i8(WORLD, i8, i8), borrows=True)
def _deliver(world: World, m: int, now: int) -> int:
    """Return the stream that waited for a message outside trees; one not yet asked for waits."""
    message = world.messages[m]
    slot = message[at.SLOT]
    who = message[at.TO] * world.settings.streams + message[at.STREAM]
    world.spare[world.clock[at.SPARES]] = m
    world.clock[at.SPARES] += 1
    world.report[at.DELIVERED] += 1
    world.matched[who, slot] += 1
    p = world.state[who, at.STAGE]
    if world.phases.shape[p] != NO_TREE and 0 <= slot - tree_slot(world, p) < 2:
        if world.state[who, at.TO_SEND] != at.WAITING:
            hear_in_tree(world, who, slot, now)
        return NOBODY
    return who if world.matched[who, slot] <= 0 else NOBODY
