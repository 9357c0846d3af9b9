"""Ranks and links act on one another through events, in order of time.

Every link is a first-come-first-served server, or messages share links fairly (`links.py`); every
rank works on its chunks in turn (`streams.py`). Messages of one dimension meet on its links,
whatever chunk they belong to.

Where all ranks of a dimension are alike, what happens at one happens at all: one is simulated, and
what it sends to a neighbour it hears from the other. Ties between messages of different ranks are
then broken the same way everywhere.
"""

from __future__ import annotations

from typing import Final

from simulators.collectives.heap import LENGTH, TIME, pop
from simulators.collectives.links import flow, pass_on, serve
from simulators.collectives.streams import (
    finish,
    hear,
    hear_in_tree,
    join,
    line_of,
    send,
    send_in_tree,
    start,
)
from simulators.collectives.trees import NO_TREE
from simulators.collectives.world import (
    AXIS,
    AXIS_OF,
    DELIVERED,
    FAIR_NOW,
    FLYING,
    HOP,
    IS_FAIR,
    KIND_BITS,
    KINDS,
    LINK_EVENTS,
    NO_ROOM,
    QUEUES,
    RANKS_SIMULATED,
    READY,
    SHAPE_OF,
    SLOT,
    SPARES,
    STAGE,
    STREAM,
    STREAMS,
    STREAMS_LEFT,
    TO,
    TO_SEND,
    UNFINISHED,
    WAITING,
    WIDEST,
    WORLD,
    World,
)
from simulators.core.jit import i8, kernel, void

FOREVER_NS: Final = float(1 << 62)
NOBODY: Final = -1


@kernel(void(WORLD, i8))
def run(world: World, limit: int) -> None:
    """Simulate one collective and fill in the world's report; give up after `limit` link events."""
    _start_all(world)
    clock, report, event = world.clock, world.report, world.event
    room, reserve = world.queue.shape[0], world.settings[WIDEST]
    now = 0
    while clock[LENGTH] + clock[FLYING] > 0 and report[LINK_EVENTS] < limit:
        if clock[LENGTH] + clock[FLYING] + reserve >= room or clock[SPARES] <= reserve:
            report[UNFINISHED] = NO_ROOM
            return
        following_ns = FOREVER_NS
        if clock[LENGTH] > 0:
            following_ns = world.queue[0, TIME]
        if clock[FLYING] > 0 and following_ns > now and flow(world, following_ns):
            continue
        pop(world.queue, clock, event)
        now = event[0]
        if world.settings[IS_FAIR] and clock[FLYING] == 0:
            world.reals[FAIR_NOW] = now
        _happen(world, event[1] & (KINDS - 1), event[1] >> KIND_BITS, now)
    report[UNFINISHED] = clock[STREAMS_LEFT]


@kernel(void(WORLD), borrows=True)
def _start_all(world: World) -> None:
    """Queue all streams of all ranks for their first phase, and start those that have room."""
    streams, ranks = world.settings[STREAMS], world.settings[RANKS_SIMULATED]
    world.clock[STREAMS_LEFT] = ranks * streams
    for rank in range(ranks):
        for s in range(streams):
            join(world, rank, rank * streams + s, 0)
        first = line_of(world, rank, rank * streams, 0) - world.turn_of[0, 0]
        for turn in range(world.settings[QUEUES]):
            start(world, first + turn, 0)


@kernel(void(WORLD, i8, i8, i8), borrows=True)
def _happen(world: World, what: int, index: int, now: int) -> None:
    """Let one event happen: to a message, or to a stream of a rank."""
    if what == READY:
        is_tree = world.facts[world.state[index, STAGE], SHAPE_OF] != NO_TREE
        if send_in_tree(world, index, now) if is_tree else send(world, index, now):
            finish(world, index, now)
        return
    who = index
    if what == HOP:
        world.report[LINK_EVENTS] += 1
        if pass_on(world, index):
            serve(world, index, now)
            return
        who = _deliver(world, index, now)
    if who >= 0:
        hear(world, who, now)


@kernel(i8(WORLD, i8, i8), borrows=True)
def _deliver(world: World, m: int, now: int) -> int:
    """Return the stream that waited for a message outside trees; one not yet asked for waits."""
    slot = world.messages[m, SLOT]
    who = world.messages[m, TO] * world.settings[STREAMS] + world.messages[m, STREAM]
    world.spare[world.clock[SPARES]] = m
    world.clock[SPARES] += 1
    world.report[DELIVERED] += 1
    world.matched[who, slot] += 1
    facts = world.facts[world.state[who, STAGE]]
    if facts[SHAPE_OF] != NO_TREE and facts[AXIS_OF] == world.messages[m, AXIS]:
        if world.state[who, TO_SEND] != WAITING:
            hear_in_tree(world, who, slot, now)
        return NOBODY
    return who if world.matched[who, slot] <= 0 else NOBODY
