"""A rank's chunks wait for a queue of their dimension, send what their turn allows, and move on.

A packet is ready an endpoint delay after it was made and, in a reducing half, after what came was
added: which receives are charged follows ASTRA-sim's packet counters (`steps.py`). In a tree a rank
waits for all below it, adds one after the other, reports, and passes on what comes from above.
"""

from __future__ import annotations

from simulators.collectives.algorithms import (
    ALL_REDUCE,
    DIRECT,
    HALVING_DOUBLING,
    REDUCE_SCATTER,
)
from simulators.collectives.analytic import BLOCK
from simulators.collectives.heap import push
from simulators.collectives.links import dispatch
from simulators.collectives.trees import BINARY, NO_TREE, child, children, parent
from simulators.collectives.wires import RING_BLOCK, log2, reduction_ns
from simulators.collectives.world import (
    ALGORITHM_OF,
    AXIS_OF,
    CHARGED,
    CHARGED_OF,
    ENDPOINT,
    FINISH_NS,
    FLIGHT_OF,
    FREE,
    HEAR,
    HEARD,
    INSERTED,
    IS_STEADY,
    IS_UNIFORM,
    KINDS,
    MEMORY_RATE,
    OP_OF,
    PHASES,
    PLAIN,
    QUEUES,
    RANKS_OF,
    READY,
    SENDS_OF,
    SENT,
    SERVERS,
    SHAPE_OF,
    STAGE,
    STREAMS,
    STREAMS_LEFT,
    TO_SEND,
    TOGGLE,
    WAITING,
    WORLD,
    World,
)
from simulators.core.jit import boolean, i8, kernel, void

BELOW, ABOVE = range(2)
"""Slots of what a rank of a tree hears."""


@kernel(void(WORLD, i8, i8), borrows=True)
def insert(world: World, who: int, now: int) -> None:
    """Make the next packet of a stream; it is ready after the delays of its turn."""
    state = world.state[who]
    p = state[STAGE]
    facts = world.facts[p]
    plain, charged = state[PLAIN], state[CHARGED]
    if plain == 0 and charged == 0:
        plain, charged = facts[FLIGHT_OF], facts[CHARGED_OF]
        state[TOGGLE] = 1 - state[TOGGLE]
    delay_ns = world.settings[ENDPOINT]
    if plain > 0:
        plain -= 1
    else:
        charged -= 1
        op = facts[OP_OF]
        if op == REDUCE_SCATTER or (op == ALL_REDUCE and state[TOGGLE] == 1):
            step = 0 if facts[IS_UNIFORM] else state[INSERTED]
            delay_ns += reduction_ns(world.bytes_of[p, step], world.reals[MEMORY_RATE])
    state[PLAIN], state[CHARGED] = plain, charged
    state[INSERTED] += 1
    push(world.queue, world.clock, now + delay_ns, READY + KINDS * who)


@kernel(void(WORLD, i8, i8, i8), borrows=True)
def join(world: World, rank: int, who: int, p: int) -> None:
    """Put a stream at the tail of the queue of its phase."""
    line = line_of(world, rank, who, p)
    world.state[who, :] = 0
    world.state[who, STAGE], world.state[who, TO_SEND] = p, WAITING
    world.follower[who] = -1
    if world.head[line] < 0:
        world.head[line] = who
    else:
        world.follower[world.tail[line]] = who
    world.tail[line] = who


@kernel(i8(WORLD, i8, i8, i8), borrows=True)
def line_of(world: World, rank: int, who: int, p: int) -> int:
    """Return the queue of a rank that a stream waits in for a phase."""
    queues = world.settings[QUEUES]
    lines = world.whole.shape[0] * queues
    turn = world.turn_of[p, who - rank * world.settings[STREAMS]]
    line: int = rank * lines + world.facts[p, AXIS_OF] * queues + turn
    return line


@kernel(void(WORLD, i8, i8), borrows=True)
def start(world: World, line: int, now: int) -> None:
    """Start the streams of a queue, in the order they came, while there is room."""
    while world.head[line] >= 0 and world.running[line] < world.settings[SERVERS]:
        who = world.head[line]
        world.head[line] = world.follower[who]
        world.running[line] += 1
        facts = world.facts[world.state[who, STAGE]]
        world.state[who, TO_SEND] = facts[SENDS_OF]
        if facts[SHAPE_OF] == NO_TREE:
            for _ in range(facts[FLIGHT_OF]):
                insert(world, who, now)
        else:
            _start_in_tree(world, who, now)


@kernel(void(WORLD, i8, i8), borrows=True)
def finish(world: World, who: int, now: int) -> None:
    """End a stream's phase: the next one joins its queue, and whoever waited may start."""
    rank, p = who // world.settings[STREAMS], world.state[who, STAGE]
    line = line_of(world, rank, who, p)
    world.running[line] -= 1
    joined = -1
    if p + 1 < world.settings[PHASES]:
        join(world, rank, who, p + 1)
        joined = line_of(world, rank, who, p + 1)
    else:
        world.state[who, TO_SEND] = WAITING
        world.clock[STREAMS_LEFT] -= 1
        world.report[FINISH_NS] = now
    for free in (line, joined):
        if free >= 0:
            start(world, free, now)


@kernel(void(WORLD, i8, i8), borrows=True)
def hear(world: World, who: int, now: int) -> None:
    """Let a message that a stream waited for free its next packet."""
    world.state[who, HEARD] += 1
    insert(world, who, now)


@kernel(boolean(WORLD, i8, i8), borrows=True)
def send(world: World, who: int, now: int) -> bool:
    """Send what a packet that is ready allows, and say whether the phase has ended."""
    state = world.state[who]
    p = state[STAGE]
    facts = world.facts[p]
    state[FREE] += 1
    algorithm, n, d = facts[ALGORITHM_OF], facts[RANKS_OF], facts[AXIS_OF]
    tries = 1
    if algorithm == DIRECT and facts[OP_OF] == ALL_REDUCE and state[TO_SEND] <= n - 1:
        if state[HEARD] < n - 1:
            return False  # the second half waits for the whole first
        tries = facts[FLIGHT_OF]
    rank = who // world.settings[STREAMS]
    stream = who - rank * world.settings[STREAMS]
    half = world.settings[QUEUES] // 2
    is_backwards = half > 0 and world.turn_of[p, stream] >= half
    for _ in range(tries):
        step = state[SENT]
        if state[INSERTED] == step or state[TO_SEND] == 0 or state[FREE] == 0:
            break
        column = 0 if facts[IS_STEADY] else step
        offset, slot = world.offset_of[p, column], world.first_slot[d]
        size = world.bytes_of[p, column]
        ahead = n - offset if is_backwards else offset
        if algorithm == DIRECT:
            slot += offset
        elif algorithm == HALVING_DOUBLING:
            slot += log2(offset)
            ahead = offset
            if not world.is_alike[d]:
                position = rank // world.strides[d] % n
                ahead = (position ^ offset) - position
                ahead += n * int(ahead < 0)
        world.matched[who, slot] -= 1
        if world.matched[who, slot] >= 0:
            push(world.queue, world.clock, now, HEAR + KINDS * who)
        dispatch(world, now, rank, stream, d, ahead, size, slot, int(is_backwards))
        state[SENT] += 1
        state[TO_SEND] -= 1
        state[FREE] -= 1
    has_ended: bool = state[TO_SEND] == 0 and state[FREE] == facts[FLIGHT_OF]
    return has_ended


@kernel(i8(WORLD, i8), borrows=True)
def _place(world: World, who: int) -> int:
    """Return where in the tree of its chunk a rank is: odd chunks take the mirror image."""
    facts = world.facts[world.state[who, STAGE]]
    rank = who // world.settings[STREAMS]
    position = rank // world.strides[facts[AXIS_OF]] % facts[RANKS_OF]
    is_mirrored = facts[SHAPE_OF] == BINARY and (who - rank * world.settings[STREAMS]) & 1
    place: int = facts[RANKS_OF] - 1 - position if is_mirrored else position
    return place


@kernel(void(WORLD, i8, i8))
def _start_in_tree(world: World, who: int, now: int) -> None:
    """Let leaves, or the root of a broadcast, begin; of others, handle what came too early."""
    facts = world.facts[world.state[who, STAGE]]
    place = _place(world, who)
    slot = world.first_slot[facts[AXIS_OF]]
    below = children(facts[SHAPE_OF], facts[RANKS_OF], place)
    reduces = facts[OP_OF] == ALL_REDUCE
    begins = below == 0 if reduces else place == 0
    heard = BELOW if reduces and world.matched[who, slot + BELOW] == below else ABOVE
    if begins:
        push(world.queue, world.clock, now + world.settings[ENDPOINT], READY + KINDS * who)
    elif world.matched[who, slot + heard] > 0:
        hear_in_tree(world, who, slot + heard, now)


@kernel(void(WORLD, i8, i8, i8))
def hear_in_tree(world: World, who: int, slot: int, now: int) -> None:
    """Add what came from all below, or take what came from above."""
    p = world.state[who, STAGE]
    facts = world.facts[p]
    ready_ns = now + world.settings[ENDPOINT]
    if slot == world.first_slot[facts[AXIS_OF]] + BELOW:
        below = children(facts[SHAPE_OF], facts[RANKS_OF], _place(world, who))
        if world.matched[who, slot] < below:
            return
        ready_ns += below * reduction_ns(world.bytes_of[p, 0], world.reals[MEMORY_RATE])
    push(world.queue, world.clock, ready_ns, READY + KINDS * who)


@kernel(boolean(WORLD, i8, i8))
def send_in_tree(world: World, who: int, now: int) -> bool:
    """Report upwards, else pass on downwards and have ended."""
    p = world.state[who, STAGE]
    facts = world.facts[p]
    shape, n, d = facts[SHAPE_OF], facts[RANKS_OF], facts[AXIS_OF]
    place = _place(world, who)
    if facts[OP_OF] == ALL_REDUCE and world.state[who, SENT] == 0:
        world.state[who, SENT] = 1
        if place != 0:
            _along(world, who, parent(n, place) - place, world.first_slot[d] + BELOW, now)
            return False
    for turn in range(children(shape, n, place)):
        to = child(shape, n, place, turn)
        _along(world, who, to - place, world.first_slot[d] + ABOVE, now)
    return True


@kernel(void(WORLD, i8, i8, i8, i8), borrows=True)
def _along(world: World, who: int, places: int, slot: int, now: int) -> None:
    """Send a chunk along an edge of its tree."""
    p = world.state[who, STAGE]
    facts = world.facts[p]
    rank = who // world.settings[STREAMS]
    stream = who - rank * world.settings[STREAMS]
    is_mirrored = facts[SHAPE_OF] == BINARY and stream & 1
    ahead = (-places if is_mirrored else places) % facts[RANKS_OF]
    is_backwards = int(world.whole[facts[AXIS_OF], BLOCK] == RING_BLOCK and is_mirrored)
    dispatch(
        world, now, rank, stream, facts[AXIS_OF], ahead, world.bytes_of[p, 0], slot, is_backwards
    )
