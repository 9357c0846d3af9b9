"""Runs of the event loop: the arrays of a collective, and the report of a run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulators.collectives import algorithms as codes
from simulators.collectives import phase_model as asked_for
from simulators.collectives.algorithms.steps import (
    BINARY,
    NO_TREE,
    STAR,
    in_flight,
    message_of,
    offset_of,
    reducing,
    sends,
    shape_of,
)
from simulators.collectives.events import state as at
from simulators.collectives.events.links import LEAF_DOWN, LEAF_UP, links_of
from simulators.collectives.events.loop import run
from simulators.collectives.events.state import PHASES, Flows, PhaseTable, Settings, State
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.blocks import (
    BLOCK,
    FAT_TREE_BLOCK,
    LEAF,
    RANKS,
    RING_BLOCK,
    SWITCH_BLOCK,
    log2,
)
from simulators.collectives.topologies.plan import Plan
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints, i8, kernel, matrix, void

EVENT_LIMIT = 500_000_000
"""Limit on the link events of a run: about a minute."""
MOST_MESSAGES = 1 << 21
"""Limit on the messages in flight of a run: half a gigabyte."""


class Report(NamedTuple):
    """Results of a run."""

    finish_ns: int
    sent: int  # messages
    delivered: int
    link_events: int
    unfinished: int  # chunks, if the run stopped at a limit
    busy_ns: tuple[int, ...]  # of the busiest link of each dimension


def has_event_model(plan: Plan, op: int, *, baseline: bool = False) -> bool:
    """Return whether every phase of a collective can be simulated message by message."""
    for d, part, *_ in asked_for.phases_of(plan.whole, op, plan.ranks * 2, baseline=baseline):
        row = plan.whole[d]
        if row[blocks.ALGORITHM] == codes.IN_NETWORK and row[BLOCK] not in (
            SWITCH_BLOCK,
            FAT_TREE_BLOCK,
        ):
            return False
        if sends(int(row[blocks.ALGORITHM]), int(part), int(row[RANKS])) == codes.IMPOSSIBLE:
            return False
    return True


def simulate(
    plan: Plan,
    request: Ints,
    memory_bytes_per_s: float,
    *,
    every_rank: bool = False,
    mode: int = at.IN_TURN,
) -> Report:
    """Return the report of a run.

    `request` has the columns of `phase_model`; `mode` is IN_TURN, SHARED or ALONE of `state`. With
    `every_rank` all ranks are simulated, even where a single rank represents all.

    Raises:
        Infeasible: too many messages would be in flight at once.
    """
    slack = 1
    while True:
        state = state_of(
            plan, request, memory_bytes_per_s, every_rank=every_rank, mode=mode, slack=slack
        )
        run(state, EVENT_LIMIT)
        if state.report[at.UNFINISHED] != at.NO_CAPACITY:
            break
        slack *= 4
    busy_ns = state.busy_ns.reshape(state.settings.ranks, -1)
    firsts = state.first_link.tolist()
    busiest = [
        int(busy_ns[:, first:last].max(initial=0.0)) for first, last in itertools.pairwise(firsts)
    ]
    finish_ns, sent, delivered, link_events, unfinished = state.report.tolist()
    return Report(finish_ns, sent, delivered, link_events, unfinished, tuple(busiest))


def uncontended_ns(plans: Sequence[Plan], requests: Ints, memory_bytes_per_s: Floats) -> Ints:
    """Return the time of every request without contention, or IMPOSSIBLE.

    The formulas hold where all ranks of a dimension behave alike, so that chunks advance in
    lockstep. Ranks of a tree end their parts at different times and start the next chunk as soon as
    they can, so trees are simulated, as are broadcasts of several chunks. Trees that are too large,
    and trees whose chunks would deadlock, use the formula: all ranks wait for the last.
    """
    out = np.zeros(len(requests), np.int64)
    whole, rates = np.stack([p.whole for p in plans]), np.stack([p.rates for p in plans])
    asked_for.collectives_ns(requests, memory_bytes_per_s, whole, rates, out)
    has_tree = (
        (whole[:, :, blocks.ALGORITHM] == codes.DOUBLE_BINARY_TREE) & (whole[:, :, RANKS] > 1)
    ).any(1)
    op = requests[:, asked_for.OP]
    is_tree = (op == codes.ALL_REDUCE) & has_tree[requests[:, asked_for.PLAN]]
    is_tree |= (op == codes.BROADCAST) & (requests[:, asked_for.SPLITS] > 1)
    for i in np.flatnonzero(is_tree & (out != codes.IMPOSSIBLE)):
        plan, memory = plans[requests[i, asked_for.PLAN]], float(memory_bytes_per_s[i])
        with contextlib.suppress(Infeasible):
            report = simulate(plan, requests[i], memory, mode=at.ALONE)
            out[i] = out[i] if report.unfinished else report.finish_ns
    return out


def state_of(
    plan: Plan, request: Ints, memory_bytes_per_s: float, *, every_rank: bool, mode: int, slack: int
) -> State:
    """Return the arrays of a run before its first event; `slack` multiplies the message slots.

    Raises:
        Infeasible: too many messages would be in flight at once.
    """
    op, chunk = int(request[asked_for.OP]), asked_for.chunk_bytes(request, plan.ranks)
    phases = asked_for.phases_of(plan.whole, op, chunk, baseline=bool(request[asked_for.BASELINE]))
    alike = np.zeros(len(plan.whole), np.int64) if every_rank else _alike(plan, phases)
    ranks_of = np.where(alike == 1, 1, plan.whole[:, RANKS])  # simulated ranks by dimension
    first_link = np.cumsum([0, *(links_of(int(d[BLOCK]), int(d[RANKS])) for d in plan.whole)])
    widest = max(_widest(plan.whole[d], int(part)) for d, part, *_ in phases)
    streams, queues = asked_for.chunks_of(request, plan.ranks), int(request[asked_for.QUEUES])
    servers = -(-int(request[asked_for.ACTIVE]) // queues)
    in_service = min(streams, len(plan.whole) * queues * servers)
    settings = Settings(
        ranks=int(np.prod(ranks_of)),
        streams=streams,
        phases=len(phases),
        servers=servers,
        queues=queues,
        endpoint_ns=int(request[asked_for.ENDPOINT_NS]),
        owned=int(first_link[-1]),
        reserve=widest * (in_service + 1),
        mode=mode,
        memory_bytes_per_s=memory_bytes_per_s,
    )
    ranks = settings.ranks
    free_slots = slack * (64 + 2 * ranks * in_service * widest)
    first_slot = np.cumsum([0, *(_peers(d) for d in plan.whole)])
    rows, lines = ranks * streams, ranks * len(plan.whole) * queues
    _check_messages(settings, max(free_slots, rows * int(first_slot[-1])))
    clock, links = _zeros(at.COUNTERS), ranks * settings.owned
    clock[at.SPARES] = free_slots
    return State(
        settings=settings,
        phases=_tabulated(plan.whole, phases, streams, queues),
        whole=plan.whole,
        rates=plan.rates,
        strides=np.cumprod([1, *ranks_of[:-1]]),
        is_alike=alike,
        uplinks=_uplinks(plan),
        first_link=first_link,
        first_slot=first_slot,
        stream=_zeros(rows, at.STREAM_FIELDS),
        matched=_zeros(rows, int(first_slot[-1])),
        head=np.full(lines, -1, np.int64),
        tail=np.full(lines, -1, np.int64),
        running=_zeros(lines),
        follower=np.full(rows, -1, np.int64),
        messages=_zeros(free_slots, at.MESSAGE_FIELDS),
        spare=np.arange(free_slots)[::-1].copy(),
        flows=_flows(plan, settings, first_link, free_slots),
        shared_until_ns=np.zeros(1),
        free_at=_zeros(links),
        busy_ns=np.zeros(links),
        queue=_zeros(free_slots, 3),
        event=_zeros(2),
        clock=clock,
        report=_zeros(at.UNFINISHED + 1),
    )


def _check_messages(settings: Settings, in_flight: int) -> None:
    """Raise Infeasible if more messages may be in flight than can be simulated."""
    if in_flight > MOST_MESSAGES:
        raise Infeasible(
            "too_many_messages",
            f"{settings.ranks:,} ranks with {settings.streams:,} chunks may have {in_flight:,} "
            f"messages under way; up to {MOST_MESSAGES:,} are simulated",
        )


def _flows(plan: Plan, settings: Settings, first_link: Ints, free_slots: int) -> Flows:
    """Return the arrays of max-min fair sharing; of one entry if links are not shared."""
    is_fair, links = settings.mode == at.SHARED, settings.ranks * settings.owned
    sharing = free_slots if is_fair else 1
    longest = max([4, *(int(d[RANKS]) // 2 for d in plan.whole if d[BLOCK] == RING_BLOCK)])
    return Flows(
        flying=_zeros(sharing),
        routes=np.full((sharing, longest if is_fair else 1), -1, np.int64),
        shares=np.zeros((sharing, 3)),
        capacity=_capacity(plan, settings.ranks, first_link, is_fair=is_fair),
        free_bandwidth=np.zeros(links),
        load=_zeros(links),
        used=_zeros(links),
    )


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, np.int64)


def _alike(plan: Plan, phases: Ints) -> Ints:
    """Return per dimension whether all ranks send the same messages at the same time.

    Ranks of a tree have different parts. On a ring, partners of halving-doubling share links with
    some ranks and not with others; in a fat tree some peers are behind the same leaf switch.
    """
    alike = np.ones(len(plan.whole), np.int64)
    for d, op, *_ in phases:
        row = plan.whole[d]
        algorithm = int(row[blocks.ALGORITHM])
        if algorithm == codes.IN_NETWORK:
            continue
        is_odd = row[BLOCK] == RING_BLOCK and algorithm == codes.HALVING_DOUBLING
        is_split = row[BLOCK] == FAT_TREE_BLOCK and row[RANKS] > row[LEAF]
        if is_odd or is_split or shape_of(algorithm, int(op)) != NO_TREE:
            alike[d] = 0
    return alike


def _peers(dimension: Ints) -> int:
    """Return the number of message slots of a stream's peers: four in trees, for two visits."""
    algorithm, ranks = int(dimension[blocks.ALGORITHM]), int(dimension[RANKS])
    if algorithm == codes.DIRECT:
        return max(ranks, 4)
    return max(log2(ranks) + 1 if algorithm == codes.HALVING_DOUBLING else 4, 4)


def _widest(dimension: Ints, op: int) -> int:
    algorithm, ranks = int(dimension[blocks.ALGORITHM]), int(dimension[RANKS])
    shape = shape_of(algorithm, op)
    if shape == STAR or algorithm == codes.DIRECT:
        return ranks
    if shape == BINARY:
        return 3
    return 1 if shape == NO_TREE else ranks.bit_length() + 1


def _uplinks(plan: Plan) -> Ints:
    """Return the number of uplinks of a leaf switch, at most the number of its ports."""
    leaf, over = plan.whole[:, LEAF], plan.rates[:, blocks.OVERSUBSCRIPTION]
    return np.clip(np.ceil(leaf / over), 1, np.maximum(leaf, 1)).astype(np.int64)


def _capacity(plan: Plan, ranks: int, first_link: Ints, *, is_fair: bool) -> Floats:
    """Return the bytes per ns of every link, ordered by rank."""
    own = np.ones(int(first_link[-1]))
    uplinks = _uplinks(plan)
    for d, (row, rates) in enumerate(zip(plan.whole, plan.rates, strict=True)):
        own[first_link[d] : first_link[d + 1]] = rates[blocks.BYTES_PER_NS]
        if row[BLOCK] == FAT_TREE_BLOCK:
            trunk = row[LEAF] / rates[blocks.OVERSUBSCRIPTION]
            share = trunk if is_fair else min(1.0, trunk / uplinks[d])
            if is_fair and row[blocks.ALGORITHM] == codes.IN_NETWORK:
                share = min(1.0, trunk)
            own[first_link[d] + LEAF_UP : first_link[d] + LEAF_DOWN + 1] *= share
    return np.tile(own, ranks)


def _tabulated(whole: Ints, phases: Ints, streams: int, queues: int) -> PhaseTable:
    columns = 1
    for d in phases[:, asked_for.DIMENSION]:
        if whole[d, blocks.ALGORITHM] == codes.DIRECT:
            columns = max(columns, 2 * int(whole[d, RANKS]))
        if whole[d, blocks.ALGORITHM] == codes.HALVING_DOUBLING:
            columns = max(columns, 2 * log2(int(whole[d, RANKS])) + 2)
    facts = np.zeros((11, len(phases)), np.int64)
    steps = np.zeros((2, len(phases), columns), np.int64)
    halves = phases[:, asked_for.HALF].tolist()
    turns = np.array(
        [[asked_for.queue_of(half, queues, s) for s in range(streams)] for half in halves]
    )
    table = PhaseTable._make((*facts, *steps, turns))
    tabulate(whole, np.ascontiguousarray(phases), table)
    return table


@kernel(i8(matrix(i8), i8))
def _mirror(phases: Ints, p: int) -> int:
    """Return which chunks use the mirror image of a tree in a phase: EVEN, ALL or NONE.

    A dimension alternates between its two trees, the mirror image first: chunk by chunk, or between
    the two visits of every chunk.
    """
    for other in range(phases.shape[0]):
        if other != p and phases[other, asked_for.DIMENSION] == phases[p, asked_for.DIMENSION]:
            return at.ALL if p < other else at.NONE
    return at.EVEN


@kernel(void(matrix(i8), matrix(i8), PHASES))
def tabulate(whole: Ints, phases: Ints, out: PhaseTable) -> None:
    """Write the messages and receives of every phase."""
    for p in range(phases.shape[0]):
        d, op = phases[p, asked_for.DIMENSION], phases[p, asked_for.PHASE_OP]
        ranks, algorithm = whole[d, RANKS], whole[d, blocks.ALGORITHM]
        window, payload = whole[d, blocks.WINDOW], phases[p, asked_for.PAYLOAD]
        out.algorithm[p], out.op[p], out.axis[p], out.ranks[p] = algorithm, op, d, ranks
        out.sends[p] = sends(algorithm, op, ranks)
        out.charged[p] = reducing(algorithm, op, ranks, window)
        out.flight[p] = in_flight(algorithm, op, ranks, window)
        out.shape[p] = shape_of(algorithm, op)
        out.mirror[p] = _mirror(phases, p) if out.shape[p] == BINARY else at.NONE
        out.is_uniform[p] = int(algorithm != codes.HALVING_DOUBLING)
        out.is_steady[p] = int(algorithm != codes.HALVING_DOUBLING and algorithm != codes.DIRECT)
        for step in range(out.bytes_of.shape[1]):
            out.bytes_of[p, step] = message_of(algorithm, op, ranks, payload, step)
            out.offset_of[p, step] = offset_of(algorithm, op, ranks, step)
