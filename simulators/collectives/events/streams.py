"""A rank's chunks: they wait for a queue of their dimension, send what their turn allows, move on.

A packet is ready an endpoint delay after it was made and, in a reducing half, after what came was
added: which receives are charged follows ASTRA-sim's packet counters (`steps.py`). In a tree a rank
waits for all below it, adds one after the other, reports, and passes on what comes from above.
"""

from __future__ import annotations

from simulators.collectives import algorithms as codes
from simulators.collectives.algorithms.trees import NO_TREE, child, children, parent
from simulators.collectives.events import state as at
from simulators.collectives.events.event_queue import push
from simulators.collectives.events.links import dispatch
from simulators.collectives.events.state import WORLD, World
from simulators.collectives.topologies.blocks import log2, reduction_ns
from simulators.core.jit import boolean, i8, kernel, void

BELOW, ABOVE = range(2)
"""Slots of what a rank of a tree hears."""


@kernel(void(WORLD, i8, i8), borrows=True)
def insert(world: World, who: int, now: int) -> None:
    """Make the next packet of a stream; it is ready after the delays of its turn."""
    state, phases, settings = world.state[who], world.phases, world.settings
    p = state[at.STAGE]
    plain, charged = state[at.PLAIN], state[at.CHARGED]
    if plain == 0 and charged == 0:
        plain, charged = phases.flight[p], phases.charged[p]
        state[at.TOGGLE] = 1 - state[at.TOGGLE]
    delay_ns = settings.endpoint_ns
    if plain > 0:
        plain -= 1
    else:
        charged -= 1
        op = phases.op[p]
        if op == codes.REDUCE_SCATTER or (op == codes.ALL_REDUCE and state[at.TOGGLE] == 1):
            step = 0 if phases.is_uniform[p] else state[at.INSERTED]
            delay_ns += reduction_ns(phases.bytes_of[p, step], settings.memory_bytes_per_s)
    state[at.PLAIN], state[at.CHARGED] = plain, charged
    state[at.INSERTED] += 1
    push(world.queue, world.clock, now + delay_ns, at.READY + at.KINDS * who)


@kernel(void(WORLD, i8, i8, i8), borrows=True)
def join(world: World, rank: int, who: int, p: int) -> None:
    """Put a stream at the tail of the queue of its phase."""
    line = line_of(world, rank, who, p)
    world.state[who, :] = 0
    world.state[who, at.STAGE], world.state[who, at.TO_SEND] = p, at.WAITING
    world.follower[who] = -1
    if world.head[line] < 0:
        world.head[line] = who
    else:
        world.follower[world.tail[line]] = who
    world.tail[line] = who


@kernel(i8(WORLD, i8, i8, i8), borrows=True)
def line_of(world: World, rank: int, who: int, p: int) -> int:
    """Return the queue of a rank that a stream waits in for a phase."""
    queues = world.settings.queues
    lines = world.whole.shape[0] * queues
    turn = world.phases.turn_of[p, who - rank * world.settings.streams]
    line: int = rank * lines + world.phases.axis[p] * queues + turn
    return line


@kernel(void(WORLD, i8, i8), borrows=True)
def start(world: World, line: int, now: int) -> None:
    """Start the streams of a queue, in the order they came, while there is room."""
    while world.head[line] >= 0 and world.running[line] < world.settings.servers:
        who = world.head[line]
        world.head[line] = world.follower[who]
        world.running[line] += 1
        p = world.state[who, at.STAGE]
        world.state[who, at.TO_SEND] = world.phases.sends[p]
        if world.phases.shape[p] == NO_TREE:
            for _ in range(world.phases.flight[p]):
                insert(world, who, now)
        else:
            _start_in_tree(world, who, now)


@kernel(void(WORLD, i8, i8), borrows=True)
def finish(world: World, who: int, now: int) -> None:
    """End a stream's phase: the next one joins its queue, and whoever waited may start."""
    rank, p = who // world.settings.streams, world.state[who, at.STAGE]
    line = line_of(world, rank, who, p)
    world.running[line] -= 1
    joined = -1
    if p + 1 < world.settings.phases:
        join(world, rank, who, p + 1)
        joined = line_of(world, rank, who, p + 1)
    else:
        world.state[who, at.TO_SEND] = at.WAITING
        world.clock[at.STREAMS_LEFT] -= 1
        world.report[at.FINISH_NS] = now
    for free in (line, joined):
        if free >= 0:
            start(world, free, now)


@kernel(void(WORLD, i8, i8), borrows=True)
def hear(world: World, who: int, now: int) -> None:
    """Let a message that a stream waited for free its next packet."""
    world.state[who, at.HEARD] += 1
    insert(world, who, now)


@kernel(boolean(WORLD, i8, i8), borrows=True)
def send(world: World, who: int, now: int) -> bool:
    """Send what a packet that is ready allows, and say whether the phase has ended."""
    state, phases = world.state[who], world.phases
    p = state[at.STAGE]
    state[at.FREE] += 1
    algorithm, n, d = phases.algorithm[p], phases.ranks[p], phases.axis[p]
    tries = 1
    if (
        algorithm == codes.DIRECT
        and phases.op[p] == codes.ALL_REDUCE
        and state[at.TO_SEND] <= n - 1
    ):
        if state[at.HEARD] < n - 1:
            return False  # the second half waits for the whole first
        tries = phases.flight[p]
    rank = who // world.settings.streams
    stream = who - rank * world.settings.streams
    half = world.settings.queues // 2
    is_backwards = half > 0 and phases.turn_of[p, stream] >= half
    for _ in range(tries):
        step = state[at.SENT]
        if state[at.INSERTED] == step or state[at.TO_SEND] == 0 or state[at.FREE] == 0:
            break
        column = 0 if phases.is_steady[p] else step
        offset, slot = phases.offset_of[p, column], world.first_slot[d]
        size = phases.bytes_of[p, column]
        ahead = n - offset if is_backwards else offset
        if algorithm == codes.DIRECT:
            slot += offset
        elif algorithm == codes.HALVING_DOUBLING:
            slot += log2(offset)
            ahead = offset
            if not world.is_alike[d]:
                position = rank // world.strides[d] % n
                ahead = (position ^ offset) - position
                ahead += n * int(ahead < 0)
        world.matched[who, slot] -= 1
        if world.matched[who, slot] >= 0:
            push(world.queue, world.clock, now, at.HEAR + at.KINDS * who)
        dispatch(world, now, rank, stream, d, ahead, size, slot, int(is_backwards))
        state[at.SENT] += 1
        state[at.TO_SEND] -= 1
        state[at.FREE] -= 1
    has_ended: bool = state[at.TO_SEND] == 0 and state[at.FREE] == phases.flight[p]
    return has_ended


@kernel(i8(WORLD, i8), borrows=True)
def _is_mirrored(world: World, who: int) -> int:
    """Say whether a stream takes the mirror image of the tree, whose root is the last rank."""
    mirror = world.phases.mirror[world.state[who, at.STAGE]]
    if mirror == at.EVEN:
        return int(who % world.settings.streams % 2 == 0)
    return int(mirror == at.ALL)


@kernel(i8(WORLD, i8), borrows=True)
def _tree_position(world: World, who: int) -> int:
    """Return where in the tree of its chunk a rank is."""
    p, phases = world.state[who, at.STAGE], world.phases
    rank = who // world.settings.streams
    position: int = rank // world.strides[phases.axis[p]] % phases.ranks[p]
    return phases.ranks[p] - 1 - position if _is_mirrored(world, who) else position


@kernel(i8(WORLD, i8), borrows=True)
def tree_slot(world: World, p: int) -> int:
    """Return the first of the slots in which ranks of a tree hear; two visits have two pairs."""
    slot: int = world.first_slot[world.phases.axis[p]] + 2 * int(world.phases.mirror[p] == at.NONE)
    return slot


@kernel(void(WORLD, i8, i8))
def _start_in_tree(world: World, who: int, now: int) -> None:
    """Let leaves, or the root of a broadcast, begin; of others, handle what came too early."""
    p, phases = world.state[who, at.STAGE], world.phases
    position = _tree_position(world, who)
    slot = tree_slot(world, p)
    below = children(phases.shape[p], phases.ranks[p], position)
    reduces = phases.op[p] == codes.ALL_REDUCE
    begins = below == 0 if reduces else position == 0
    heard = BELOW if reduces and world.matched[who, slot + BELOW] == below else ABOVE
    if begins:
        ready_ns = now + world.settings.endpoint_ns
        push(world.queue, world.clock, ready_ns, at.READY + at.KINDS * who)
    elif world.matched[who, slot + heard] > 0:
        hear_in_tree(world, who, slot + heard, now)


@kernel(void(WORLD, i8, i8, i8))
def hear_in_tree(world: World, who: int, slot: int, now: int) -> None:
    """Add what came from all below, or take what came from above.

    Both are charged as one addition, as in the reference simulator: it adds what two children sent
    at once, and what a parent sent once more. Leaves and broadcasts add nothing.
    """
    p, phases = world.state[who, at.STAGE], world.phases
    below = children(phases.shape[p], phases.ranks[p], _tree_position(world, who))
    is_from_below = slot == tree_slot(world, p) + BELOW
    if is_from_below and world.matched[who, slot] < below:
        return
    ready_ns = now + world.settings.endpoint_ns
    if phases.op[p] == codes.ALL_REDUCE and below > 0:
        ready_ns += reduction_ns(phases.bytes_of[p, 0], world.settings.memory_bytes_per_s)
    push(world.queue, world.clock, ready_ns, at.READY + at.KINDS * who)


@kernel(boolean(WORLD, i8, i8))
def send_in_tree(world: World, who: int, now: int) -> bool:
    """Report upwards, else pass on downwards, lower ranks first, and have ended."""
    p, phases = world.state[who, at.STAGE], world.phases
    shape, n, slot = phases.shape[p], phases.ranks[p], tree_slot(world, p)
    position, is_mirrored = _tree_position(world, who), _is_mirrored(world, who)
    if phases.op[p] == codes.ALL_REDUCE and world.state[who, at.SENT] == 0:
        world.state[who, at.SENT] = 1
        if position != 0:
            _along(world, who, parent(n, position) - position, slot + BELOW, now)
            return False
    below = children(shape, n, position)
    for turn in range(below):
        to = child(shape, n, position, below - 1 - turn if is_mirrored else turn)
        _along(world, who, to - position, slot + ABOVE, now)
    return True


@kernel(void(WORLD, i8, i8, i8, i8), borrows=True)
def _along(world: World, who: int, offset: int, slot: int, now: int) -> None:
    """Send a chunk along an edge of its tree."""
    p, phases = world.state[who, at.STAGE], world.phases
    d, size = phases.axis[p], phases.bytes_of[p, 0]
    rank = who // world.settings.streams
    ahead = (-offset if _is_mirrored(world, who) else offset) % phases.ranks[p]
    dispatch(world, now, rank, who % world.settings.streams, d, ahead, size, slot, 0)
