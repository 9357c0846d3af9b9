"""Collectives through the event loop: their phases laid out, their ranks one or all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulators.collectives import phase_model as asked_for
from simulators.collectives.algorithms import (
    ALL_REDUCE,
    DIRECT,
    DOUBLE_BINARY_TREE,
    HALVING_DOUBLING,
    IMPOSSIBLE,
    IN_NETWORK,
)
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
from simulators.collectives.events.state import PHASES, PhaseTable, Settings, State
from simulators.collectives.phase_model import (
    chunk_bytes,
    chunks_of,
    collectives_ns,
    phases_of,
    queue_of,
)
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
"""Link events after which a run is given up: about a minute."""
MOST_MESSAGES = 1 << 21
"""Messages that may be under way at once, of a run: half a gigabyte."""


class Report(NamedTuple):
    """What a run came to."""

    finish_ns: int
    sent: int  # messages
    delivered: int
    link_events: int
    unfinished: int  # chunks, if it was given up
    busy_ns: tuple[int, ...]  # of the busiest link of each dimension


def has_event_model(plan: Plan, op: int, *, baseline: bool = False) -> bool:
    """Say whether every phase of a collective can be simulated message by message."""
    for d, part, *_ in phases_of(plan.whole, op, plan.ranks * 2, baseline=baseline):
        row = plan.whole[d]
        if row[blocks.ALGORITHM] == IN_NETWORK and row[BLOCK] not in (SWITCH_BLOCK, FAT_TREE_BLOCK):
            return False
        if sends(int(row[blocks.ALGORITHM]), int(part), int(row[RANKS])) == IMPOSSIBLE:
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
    """Return what a run reports.

    Columns of `request` are as of `phases`; `mode` is how messages meet on links: IN_TURN, SHARED
    or ALONE of `state`. With `every_rank` all ranks run, even where a single rank represents all.

    Raises:
        Infeasible: too many messages would be under way at once.
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

    The formulas hold where all ranks of a dimension are alike, so that chunks move on in step.
    Ranks of a tree end their parts at different times and begin the next chunk as soon as they can,
    so they are simulated. Only of trees too large for that, and where chunks would wait for one
    another for ever, do all ranks wait for the last.
    """
    out = np.zeros(len(requests), np.int64)
    whole, rates = np.stack([p.whole for p in plans]), np.stack([p.rates for p in plans])
    collectives_ns(requests, memory_bytes_per_s, whole, rates, out)
    has_tree = (
        (whole[:, :, blocks.ALGORITHM] == DOUBLE_BINARY_TREE) & (whole[:, :, RANKS] > 1)
    ).any(1)
    possible = (out != IMPOSSIBLE) & (requests[:, asked_for.OP] == ALL_REDUCE)
    for i in np.flatnonzero(possible & has_tree[requests[:, asked_for.PLAN]]):
        plan, memory = plans[requests[i, asked_for.PLAN]], float(memory_bytes_per_s[i])
        with contextlib.suppress(Infeasible):
            report = simulate(plan, requests[i], memory, mode=at.ALONE)
            out[i] = out[i] if report.unfinished else report.finish_ns
    return out


def state_of(
    plan: Plan,
    request: Ints,
    memory_bytes_per_s: float,
    *,
    every_rank: bool,
    mode: int,
    slack: int,
) -> State:
    """Return the arrays of a run before its first event; `slack` multiplies the event slots."""
    whole, queues = plan.whole, int(request[asked_for.QUEUES])
    streams = chunks_of(request, plan.ranks)
    phases = phases_of(
        whole,
        int(request[asked_for.OP]),
        chunk_bytes(request, plan.ranks),
        baseline=bool(request[asked_for.BASELINE]),
    )
    alike = np.zeros(len(whole), np.int64) if every_rank else _alike(plan, phases)
    counted = np.where(alike == 1, 1, whole[:, RANKS])
    ranks = int(np.prod(counted))
    first_link = np.cumsum([0, *(links_of(int(d[BLOCK]), int(d[RANKS])) for d in whole)])
    first_slot = np.cumsum([0, *(_peers(d) for d in whole)])
    owned, slots, lines = int(first_link[-1]), int(first_slot[-1]), len(whole) * queues
    servers = -(-int(request[asked_for.ACTIVE]) // queues)
    widest = max(_widest(whole[d], int(op)) for d, op, *_ in phases)
    at_once = min(streams, lines * servers)
    free_slots = slack * (64 + 2 * ranks * at_once * widest)
    waiting = ranks * streams * slots
    if max(free_slots, waiting) > MOST_MESSAGES:
        raise Infeasible(
            "too_many_messages",
            f"{ranks:,} ranks with {streams:,} chunks may have {max(free_slots, waiting):,} "
            f"messages under way; up to {MOST_MESSAGES:,} are simulated",
        )
    clock = np.zeros(at.COUNTERS, np.int64)
    clock[at.SPARES] = free_slots
    links, is_fair = ranks * owned, mode == at.SHARED
    sharing = free_slots if is_fair else 1
    route = max([4, *(int(d[RANKS]) // 2 for d in whole if d[BLOCK] == RING_BLOCK)])
    return State(
        settings=Settings(
            ranks,
            streams,
            len(phases),
            servers,
            queues,
            int(request[asked_for.ENDPOINT_NS]),
            owned,
            widest * (at_once + 1),
            mode,
            memory_bytes_per_s,
        ),
        phases=_tabulated(whole, phases, streams, queues),
        whole=whole,
        rates=plan.rates,
        strides=np.cumprod([1, *counted[:-1]]),
        is_alike=alike,
        uplinks=_uplinks(plan),
        first_link=first_link,
        first_slot=first_slot,
        stream=np.zeros((ranks * streams, at.STREAM_FIELDS), np.int64),
        matched=np.zeros((ranks * streams, slots), np.int64),
        head=np.full(ranks * lines, -1, np.int64),
        tail=np.full(ranks * lines, -1, np.int64),
        running=np.zeros(ranks * lines, np.int64),
        follower=np.full(ranks * streams, -1, np.int64),
        messages=np.zeros((free_slots, at.MESSAGE_FIELDS), np.int64),
        spare=np.arange(free_slots)[::-1].copy(),
        shares=np.zeros((sharing, 3)),
        routes=np.full((sharing, route if is_fair else 1), -1, np.int64),
        flying=np.zeros(sharing, np.int64),
        shared_until_ns=np.zeros(1),
        capacity=_capacity(plan, ranks, first_link, is_fair=is_fair),
        free_bandwidth=np.zeros(links),
        load=np.zeros(links, np.int64),
        used=np.zeros(links, np.int64),
        free_at=np.zeros(links, np.int64),
        busy_ns=np.zeros(links),
        queue=np.zeros((free_slots, 3), np.int64),
        event=np.zeros(2, np.int64),
        clock=clock,
        report=np.zeros(at.UNFINISHED + 1, np.int64),
    )


def _alike(plan: Plan, phases: Ints) -> Ints:
    """Return the dimensions whose ranks all send the same messages at the same time.

    Ranks of a tree have different parts. On a ring, partners of halving-doubling share links with
    some ranks and not with others; in a fat tree some peers are behind the same leaf switch.
    """
    alike = np.ones(len(plan.whole), np.int64)
    for d, op, *_ in phases:
        row = plan.whole[d]
        algorithm = int(row[blocks.ALGORITHM])
        if algorithm == IN_NETWORK:
            continue
        is_odd = row[BLOCK] == RING_BLOCK and algorithm == HALVING_DOUBLING
        is_split = row[BLOCK] == FAT_TREE_BLOCK and row[RANKS] > row[LEAF]
        if is_odd or is_split or shape_of(algorithm, int(op)) != NO_TREE:
            alike[d] = 0
    return alike


def _peers(dimension: Ints) -> int:
    """Return how many slots the peers of a stream need: four in trees, for two visits."""
    algorithm, ranks = int(dimension[blocks.ALGORITHM]), int(dimension[RANKS])
    if algorithm == DIRECT:
        return max(ranks, 4)
    return max(log2(ranks) + 1 if algorithm == HALVING_DOUBLING else 4, 4)


def _widest(dimension: Ints, op: int) -> int:
    """Return the most messages a rank sends at one time."""
    algorithm, ranks = int(dimension[blocks.ALGORITHM]), int(dimension[RANKS])
    shape = shape_of(algorithm, op)
    if shape == STAR or algorithm == DIRECT:
        return ranks
    if shape == BINARY:
        return 3
    return 1 if shape == NO_TREE else ranks.bit_length() + 1


def _uplinks(plan: Plan) -> Ints:
    """Return the uplinks of a leaf switch, at most as many as its ports."""
    leaf, over = plan.whole[:, LEAF], plan.rates[:, blocks.OVERSUBSCRIPTION]
    return np.clip(np.ceil(leaf / over), 1, np.maximum(leaf, 1)).astype(np.int64)


def _capacity(plan: Plan, ranks: int, first_link: Ints, *, is_fair: bool) -> Floats:
    """Return bytes per ns of every link, of rank after rank."""
    own = np.ones(int(first_link[-1]))
    uplinks = _uplinks(plan)
    for d, (row, rates) in enumerate(zip(plan.whole, plan.rates, strict=True)):
        own[first_link[d] : first_link[d + 1]] = rates[blocks.BYTES_PER_NS]
        if row[BLOCK] == FAT_TREE_BLOCK:
            trunk = row[LEAF] / rates[blocks.OVERSUBSCRIPTION]
            share = trunk if is_fair else min(1.0, trunk / uplinks[d])
            if is_fair and row[blocks.ALGORITHM] == IN_NETWORK:
                share = min(1.0, trunk)
            own[first_link[d] + LEAF_UP : first_link[d] + LEAF_DOWN + 1] *= share
    return np.tile(own, ranks)


def _tabulated(whole: Ints, phases: Ints, streams: int, queues: int) -> PhaseTable:
    """Return what is looked up about every phase, and bytes and peers of its steps."""
    columns = 1
    for d in phases[:, asked_for.DIMENSION]:
        if whole[d, blocks.ALGORITHM] == DIRECT:
            columns = max(columns, 2 * int(whole[d, RANKS]))
        if whole[d, blocks.ALGORITHM] == HALVING_DOUBLING:
            columns = max(columns, 2 * log2(int(whole[d, RANKS])) + 2)
    facts = np.zeros((11, len(phases)), np.int64)
    steps = np.zeros((2, len(phases), columns), np.int64)
    halves = phases[:, asked_for.HALF].tolist()
    turns = np.array([[queue_of(half, queues, s) for s in range(streams)] for half in halves])
    table = PhaseTable._make((*facts, *steps, turns))
    tabulate(whole, np.ascontiguousarray(phases), table)
    return table


@kernel(i8(matrix(i8), i8))
def _mirror(phases: Ints, p: int) -> int:
    """Return which chunks take the mirror image of a tree in a phase.

    A dimension hands out its two trees in turn, the mirror image first: chunk after chunk, or to
    the two visits of every chunk.
    """
    for other in range(phases.shape[0]):
        if other != p and phases[other, asked_for.DIMENSION] == phases[p, asked_for.DIMENSION]:
            return at.ALL if p < other else at.NONE
    return at.EVEN


@kernel(void(matrix(i8), matrix(i8), PHASES))
def tabulate(whole: Ints, phases: Ints, out: PhaseTable) -> None:
    """Write what the steps of every phase send and wait for."""
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
        out.is_uniform[p] = int(algorithm != HALVING_DOUBLING)
        out.is_steady[p] = int(algorithm != HALVING_DOUBLING and algorithm != DIRECT)
        for step in range(out.bytes_of.shape[1]):
            out.bytes_of[p, step] = message_of(algorithm, op, ranks, payload, step)
            out.offset_of[p, step] = offset_of(algorithm, op, ranks, step)
