"""One collective through the event loop: its phases laid out, its ranks one or all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.collectives.algorithms import (
    DIRECT,
    HALVING_DOUBLING,
    IMPOSSIBLE,
    IN_NETWORK,
)
from simulators.collectives.analytic import (
    ACTIVE,
    ALGORITHM,
    BASELINE,
    BLOCK,
    BYTES_PER_NS,
    ENDPOINT_NS,
    LATENCY_NS,
    LEAF,
    OP,
    OVERSUBSCRIPTION,
    QUEUES,
    RANKS,
    SIZE,
    SPLITS,
    WINDOW,
)
from simulators.collectives.events import run
from simulators.collectives.links import LEAF_DOWN, LEAF_UP, links_of
from simulators.collectives.phases import MAX_PHASES, lay_out, queue_of, split
from simulators.collectives.plan import Plan
from simulators.collectives.steps import in_flight, message_of, offset_of, reducing, sends
from simulators.collectives.trees import NO_TREE, STAR, shape_of
from simulators.collectives.wires import FAT_TREE_BLOCK, RING_BLOCK, SWITCH_BLOCK, log2
from simulators.collectives.world import (
    ALGORITHM_OF,
    AXIS_OF,
    BUSIEST_NS,
    BUSY_OF,
    CHARGED_OF,
    COUNTERS,
    FACTS,
    FIELDS,
    FLIGHT_OF,
    IS_STEADY,
    IS_UNIFORM,
    MESSAGE_FIELDS,
    NO_ROOM,
    OP_OF,
    RANKS_OF,
    SENDS_OF,
    SHAPE_OF,
    SPARES,
    UNFINISHED,
    World,
)
from simulators.core.errors import Infeasible
from simulators.core.jit import Ints, i8, kernel, matrix, void

EVENT_LIMIT = 500_000_000
"""Link events after which a run is given up: about a minute."""
MOST_MESSAGES = 1 << 21
"""Messages that may be under way at once, of a run that is begun: half a gigabyte."""


def has_event_model(plan: Plan, op: int, *, baseline: bool = False) -> bool:
    """Say whether every phase of a collective can be simulated message by message."""
    phase, _ = laid_out(plan, op, plan.ranks * 2, int(baseline))
    return all(_has_steps(plan.whole[int(d)], int(o)) for d, o, _ in phase)


def simulate(
    plan: Plan,
    request: Ints,
    memory_bytes_per_s: float,
    *,
    every_rank: bool = False,
    is_fair: bool = False,
) -> Ints:
    """Return what a run reports.

    Args:
        plan: the network.
        request: a row as of `analytic.collectives_ns`.
        memory_bytes_per_s: of the local memory.
        every_rank: simulate all ranks even where one stands for all.
        is_fair: messages share links max-min fairly instead of taking turns.

    Raises:
        Infeasible: too many messages would be under way at once.
    """
    slack = 1
    while True:
        world = world_of(
            plan, request, memory_bytes_per_s, every_rank=every_rank, is_fair=is_fair, slack=slack
        )
        run(world, EVENT_LIMIT)
        if world.report[UNFINISHED] != NO_ROOM:
            break
        slack *= 4
    _measure_links(world)
    return world.report


def world_of(
    plan: Plan,
    request: Ints,
    memory_bytes_per_s: float,
    *,
    every_rank: bool,
    is_fair: bool,
    slack: int,
) -> World:
    """Return the arrays of a run before its first event; `slack` multiplies the room for events."""
    cut = np.zeros(2, np.int64)
    split(int(request[OP]), int(request[SIZE]), int(request[SPLITS]), plan.ranks, cut)
    streams, queues = int(cut[1]), int(request[QUEUES])
    phase, half = laid_out(plan, int(request[OP]), int(cut[0]), int(request[BASELINE]))
    whole = plan.whole
    alike = np.zeros(len(whole), np.int64) if every_rank else _alike(plan, phase)
    counted = np.where(alike == 1, 1, whole[:, RANKS])
    ranks = int(np.prod(counted))
    first_link = np.concatenate(
        ([0], np.cumsum([links_of(int(d[BLOCK]), int(d[RANKS])) for d in whole]))
    )
    first_slot = np.concatenate(([0], np.cumsum([_peers(d) for d in whole])))
    owned, lines = int(first_link[-1]), len(whole) * queues
    servers = -(-int(request[ACTIVE]) // queues)
    widest = max(_widest(whole[d], int(op)) for d, op, _ in phase)
    at_once = min(streams, lines * servers)
    room = slack * (64 + 2 * ranks * at_once * widest)
    waiting = ranks * streams * int(first_slot[-1])
    if max(room, waiting) > MOST_MESSAGES:
        raise Infeasible(
            "too_many_messages",
            f"{ranks:,} ranks with {streams:,} chunks may have {max(room, waiting):,} messages "
            f"under way; up to {MOST_MESSAGES:,} are simulated",
        )
    facts, bytes_of, offsets = _tabulated(whole, phase)
    turns = np.array([[queue_of(int(h), queues, s) for s in range(streams)] for h in half])
    clock = np.zeros(COUNTERS, np.int64)
    clock[SPARES] = room
    links, route = ranks * owned, _longest_route(whole) if is_fair else 1
    settings = [
        ranks, streams, len(phase), servers, queues, int(request[ENDPOINT_NS]), owned,
        widest * (at_once + 1), int(is_fair),
    ]  # fmt: skip
    sharing = room if is_fair else 1
    return World(
        settings=np.array(settings, np.int64),
        reals=np.array([memory_bytes_per_s, 0.0]),
        whole=whole,
        latency_ns=np.ascontiguousarray(plan.rates[:, LATENCY_NS]),
        strides=np.concatenate(([1], np.cumprod(counted)[:-1])).astype(np.int64),
        is_alike=alike,
        uplinks=_uplinks(plan),
        first_link=first_link,
        first_slot=first_slot,
        facts=facts,
        bytes_of=bytes_of,
        offset_of=offsets,
        turn_of=turns.astype(np.int64),
        state=np.zeros((ranks * streams, FIELDS), np.int64),
        matched=np.zeros((ranks * streams, int(first_slot[-1])), np.int64),
        head=np.full(ranks * lines, -1, np.int64),
        tail=np.full(ranks * lines, -1, np.int64),
        running=np.zeros(ranks * lines, np.int64),
        follower=np.full(ranks * streams, -1, np.int64),
        messages=np.zeros((room, MESSAGE_FIELDS), np.int64),
        spare=np.arange(room)[::-1].copy(),
        shares=np.zeros((sharing, 3)),
        routes=np.full((sharing, route), -1, np.int64),
        flying=np.zeros(sharing, np.int64),
        capacity=_capacity(plan, ranks, first_link, is_fair=is_fair),
        room=np.zeros(links),
        load=np.zeros(links, np.int64),
        used=np.zeros(links, np.int64),
        free_at=np.zeros(links, np.int64),
        busy_ns=np.zeros(links),
        queue=np.zeros((room, 3), np.int64),
        event=np.zeros(2, np.int64),
        clock=clock,
        report=np.zeros(BUSY_OF + len(whole), np.int64),
    )


def _measure_links(world: World) -> None:
    """Report how long the busiest link of each dimension, and of all, was in use."""
    busy = world.busy_ns.reshape(int(world.settings[0]), -1)
    for d in range(len(world.whole)):
        mine = busy[:, int(world.first_link[d]) : int(world.first_link[d + 1])]
        world.report[BUSY_OF + d] = int(mine.max(initial=0.0))
    world.report[BUSIEST_NS] = world.report[BUSY_OF:].max()


def _alike(plan: Plan, phase: Ints) -> Ints:
    """Say of which dimensions one rank stands for all: it does the same at the same time.

    Ranks of a tree have different parts. On a ring, partners of halving-doubling share links with
    some ranks and not with others; in a fat tree some peers are behind the same leaf switch.
    """
    alike = np.ones(len(plan.whole), np.int64)
    for d, op, _ in phase:
        row = plan.whole[d]
        is_odd = row[BLOCK] == RING_BLOCK and row[ALGORITHM] == HALVING_DOUBLING
        is_split = row[BLOCK] == FAT_TREE_BLOCK and row[RANKS] > row[LEAF]
        if row[ALGORITHM] == IN_NETWORK:
            continue
        if is_odd or is_split or shape_of(int(row[ALGORITHM]), int(op)) != NO_TREE:
            alike[d] = 0
    return alike


def _has_steps(dimension: Ints, op: int) -> bool:
    algorithm, block = int(dimension[ALGORITHM]), int(dimension[BLOCK])
    if algorithm == IN_NETWORK and block not in (SWITCH_BLOCK, FAT_TREE_BLOCK):
        return False
    return sends(algorithm, op, int(dimension[RANKS])) != IMPOSSIBLE


def laid_out(plan: Plan, op: int, chunk: int, baseline: int) -> tuple[Ints, Ints]:
    """Return dimension, op and payload of every phase, and which queues it may use."""
    dimension, ops, payload, half = (np.zeros(MAX_PHASES, np.int64) for _ in range(4))
    ranks = plan.whole[:, RANKS].copy()
    phases = lay_out(op, baseline, ranks, chunk, dimension, ops, payload, half)
    return np.stack((dimension, ops, payload), axis=1)[:phases], half[:phases]


def _peers(dimension: Ints) -> int:
    """Return how many slots the peers of a stream need: two in a tree, for below and above."""
    algorithm, ranks = int(dimension[ALGORITHM]), int(dimension[RANKS])
    if algorithm == DIRECT:
        return max(ranks, 2)
    return max(log2(ranks) + 1 if algorithm == HALVING_DOUBLING else 2, 2)


def _widest(dimension: Ints, op: int) -> int:
    """Return the most messages a rank sends at one time."""
    algorithm, ranks = int(dimension[ALGORITHM]), int(dimension[RANKS])
    shape = shape_of(algorithm, op)
    if shape == STAR or algorithm == DIRECT:
        return ranks
    return 1 if shape == NO_TREE else ranks.bit_length() + 1


def _longest_route(whole: Ints) -> int:
    rings = [int(d[RANKS]) // 2 for d in whole if d[BLOCK] == RING_BLOCK]
    return max([4, *rings])


def _uplinks(plan: Plan) -> Ints:
    """Return the uplinks of a leaf switch, at most as many as its ports."""
    leaf, over = plan.whole[:, LEAF], plan.rates[:, OVERSUBSCRIPTION]
    return np.clip(np.ceil(leaf / over), 1, np.maximum(leaf, 1)).astype(np.int64)


def _capacity(plan: Plan, ranks: int, first_link: Ints, *, is_fair: bool) -> NDArray[np.float64]:
    """Return bytes per ns of every link, of rank after rank."""
    own = np.ones(int(first_link[-1]))
    uplinks = _uplinks(plan)
    for d, (row, rates) in enumerate(zip(plan.whole, plan.rates, strict=True)):
        own[first_link[d] : first_link[d + 1]] = rates[BYTES_PER_NS]
        if row[BLOCK] == FAT_TREE_BLOCK:
            trunk = row[LEAF] / rates[OVERSUBSCRIPTION]
            share = trunk if is_fair else min(1.0, trunk / uplinks[d])
            if is_fair and row[ALGORITHM] == IN_NETWORK:
                share = min(1.0, trunk)
            own[first_link[d] + LEAF_UP : first_link[d] + LEAF_DOWN + 1] *= share
    return np.tile(own, ranks)


def _tabulated(whole: Ints, phase: Ints) -> tuple[Ints, Ints, Ints]:
    """Return what is looked up about every phase: facts, and bytes and peers of its steps."""
    columns = 1
    for d, _, _ in phase:
        if whole[d, ALGORITHM] == DIRECT:
            columns = max(columns, 2 * int(whole[d, RANKS]))
        if whole[d, ALGORITHM] == HALVING_DOUBLING:
            columns = max(columns, 2 * log2(int(whole[d, RANKS])) + 2)
    facts = np.zeros((len(phase), FACTS), np.int64)
    bytes_of, offsets = (np.zeros((len(phase), columns), np.int64) for _ in range(2))
    tabulate(whole, phase, facts, bytes_of, offsets)
    return facts, bytes_of, offsets


@kernel(void(*(matrix(i8),) * 5))
def tabulate(whole: Ints, phase: Ints, facts: Ints, bytes_of: Ints, offsets: Ints) -> None:
    """Write what the steps of every phase send and wait for."""
    for p in range(phase.shape[0]):
        d, op = phase[p, 0], phase[p, 1]
        ranks, algorithm, window = whole[d, RANKS], whole[d, ALGORITHM], whole[d, WINDOW]
        facts[p, ALGORITHM_OF], facts[p, OP_OF], facts[p, AXIS_OF] = algorithm, op, d
        facts[p, RANKS_OF] = ranks
        facts[p, SENDS_OF] = sends(algorithm, op, ranks)
        facts[p, CHARGED_OF] = reducing(algorithm, op, ranks, window)
        facts[p, FLIGHT_OF] = in_flight(algorithm, op, ranks, window)
        facts[p, IS_UNIFORM] = int(algorithm != HALVING_DOUBLING)
        facts[p, IS_STEADY] = int(algorithm != HALVING_DOUBLING and algorithm != DIRECT)
        facts[p, SHAPE_OF] = shape_of(algorithm, op)
        for step in range(bytes_of.shape[1]):
            bytes_of[p, step] = message_of(algorithm, op, ranks, phase[p, 2], step)
            offsets[p, step] = offset_of(algorithm, op, ranks, step)
