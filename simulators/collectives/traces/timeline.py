"""Timeline of an operator graph: dependencies, and one compute and one network resource per rank.

A node runs when its predecessors have ended and its resource is free. Among ready nodes the one
with the lowest number goes first, as in ASTRA-sim's workload layer; communication may instead be
issued latest first. Receives need no resource. A collective begins when the last of its ranks has
reached it. The cost of communication is its exposed time: the time that compute does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulators.collectives.events.event_queue import COUNTERS, LENGTH, pop, push
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.jit import Ints, array, i8, kernel, struct

COMPUTE, COMMUNICATION, RECEIVE = range(3)
KINDS = 3
ALONE = -1
ORDERS = ("fifo", "lifo")
"""Order of ready communication: earliest issued first, or latest first."""
NAMED = 6
"""Largest number of nodes named in an error."""


@dataclass(frozen=True)
class TraceNode:
    """An operator on a resource of a rank."""

    name: str
    duration_ns: int
    after: tuple[int, ...] = ()  # positions of the nodes it waits for
    resource: int = COMPUTE
    rank: int = 0
    group: int = ALONE  # nodes of one group, on different ranks, run together


@dataclass(frozen=True)
class Timeline:
    """Start and end of every node, and totals of the step."""

    start_ns: Ints = field(repr=False)
    end_ns: Ints = field(repr=False)
    finish_ns: int
    compute_total_ns: int  # of the busiest rank
    comm_total_ns: int
    comm_exposed_ns: int  # the step less the compute of its busiest rank


class TraceGraph(NamedTuple):
    """Nodes as arrays: durations, resources and dependencies."""

    duration_ns: Ints
    resource: Ints  # KINDS * rank + kind
    waits_for: Ints  # number of predecessors
    first_follower: Ints  # into `followers`, one more than nodes
    followers: Ints
    group: Ints  # of every node
    first_member: Ints  # into `members`, one more than groups
    members: Ints
    is_lifo: int


GRAPH = struct(TraceGraph)


def timeline(nodes: Sequence[TraceNode], order: str = "fifo") -> Timeline:
    """Return the timeline of the nodes; `order` is one of `ORDERS`.

    Raises:
        UserError: a node waits for a missing node, has a negative duration, or nodes wait for each
            other.

    >>> step = [
    ...     TraceNode("forward", 10), TraceNode("gradient", 20, (0,)),
    ...     TraceNode("all_reduce", 30, (1,), COMMUNICATION), TraceNode("rest", 25, (1,)),
    ... ]
    >>> timeline(step).finish_ns, timeline(step).comm_exposed_ns
    (60, 5)
    """
    if order not in ORDERS:
        raise UnknownNameError("order", order, ORDERS)
    graph, count = _graph_of(nodes, is_lifo=order == "lifo"), len(nodes)
    start, end = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    if run_graph(graph, start, end) < count:
        raise UserError(_why_stuck(nodes, graph, start, end))
    finish = int(end.max(initial=0))
    kind, rank, spent = graph.resource % KINDS, graph.resource // KINDS, graph.duration_ns
    compute, talk = (
        int(np.bincount(rank[kind == one], spent[kind == one]).max(initial=0.0))
        for one in (COMPUTE, COMMUNICATION)
    )
    return Timeline(start, end, finish, compute, talk, comm_exposed_ns=finish - compute)


def _graph_of(nodes: Sequence[TraceNode], *, is_lifo: bool) -> TraceGraph:
    count = len(nodes)
    for i, node in enumerate(nodes):
        if node.duration_ns < 0:
            raise UserError(f"node {i} '{node.name}' has a duration of {node.duration_ns} ns")
        for before in node.after:
            if not 0 <= before < count:
                raise UserError(
                    f"node {i} '{node.name}' waits for node {before}; there are {count} nodes"
                )
    source = np.array([b for node in nodes for b in node.after], np.int64)
    target = np.array([i for i, node in enumerate(nodes) for _ in node.after], np.int64)
    first_follower, order = _by_owner(source, count)
    group = np.array([n.group for n in nodes], np.int64)
    grouped = np.flatnonzero(group != ALONE)
    first_member, member = _by_owner(group[grouped], int(group.max(initial=ALONE)) + 1)
    return TraceGraph(
        duration_ns=np.array([n.duration_ns for n in nodes], np.int64),
        resource=np.array([KINDS * n.rank + n.resource for n in nodes], np.int64),
        waits_for=np.array([len(n.after) for n in nodes], np.int64),
        first_follower=first_follower,
        followers=target[order],
        group=group,
        first_member=first_member,
        members=grouped[member],
        is_lifo=int(is_lifo),
    )


def _by_owner(owner: Ints, owners: int) -> tuple[Ints, Ints]:
    """Return where each owner's entries start when sorted by owner, and that order."""
    counts = np.bincount(owner, minlength=owners)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return starts, np.argsort(owner, kind="stable").astype(np.int64)


def _why_stuck(nodes: Sequence[TraceNode], graph: TraceGraph, start_ns: Ints, end_ns: Ints) -> str:
    """Return a message that names nodes in a cycle, or nodes whose partners never start."""

    def named(positions: Sequence[int]) -> str:
        names = [f"'{nodes[i].name}' of rank {nodes[i].rank}" for i in positions[:NAMED]]
        return ", ".join(names) + (" ..." if len(positions) > NAMED else "")

    stuck = np.flatnonzero(end_ns < 0).tolist()
    if started := [i for i in stuck if start_ns[i] >= 0]:
        return f"{len(stuck)} nodes never end: {named(started)} wait for partners that are held up"
    before: dict[int, int] = {}
    for node in stuck:
        first, last = graph.first_follower[node], graph.first_follower[node + 1]
        before |= dict.fromkeys(graph.followers[first:last].tolist(), node)
    seen: list[int] = [stuck[0]]
    while (node := before[seen[-1]]) not in seen:
        seen.append(node)
    circle = seen[seen.index(node) :][::-1]
    return f"{len(stuck)} nodes wait for each other: {named(circle)}"


@kernel(i8(GRAPH, array(i8), array(i8)))
def run_graph(graph: TraceGraph, start_ns: Ints, end_ns: Ints) -> int:
    """Write start and end of every node; return the number of nodes that ran."""
    count, resource, group = graph.duration_ns.size, graph.resource, graph.group
    if count == 0:
        return 0
    left = graph.waits_for.copy()
    missing = graph.first_member[1:] - graph.first_member[:-1]
    resources = np.max(resource) + 1
    is_busy = np.zeros(resources, np.int64)
    # Ready nodes queue by resource: one heap each, side by side.
    sizes = np.zeros(resources + 1, np.int64)
    for i in range(count):
        sizes[resource[i] + 1] += 1
    base = np.cumsum(sizes)
    ready, running = np.zeros((count, 3), np.int64), np.zeros((count + 1, 3), np.int64)
    clocks, clock = np.zeros((resources, COUNTERS), np.int64), np.zeros(COUNTERS, np.int64)
    event = np.zeros(2, np.int64)
    now, done, node, issued = 0, 0, -1, 0
    while True:
        # First all nodes without predecessors are ready, then successors of the node that ended.
        first, last = 0, count
        if node >= 0:
            first, last = graph.first_follower[node], graph.first_follower[node + 1]
        for k in range(first, last):
            after = k if node < 0 else graph.followers[k]
            left[after] -= int(node >= 0)
            if left[after] == 0:
                r = resource[after]
                issued += 1
                key = -issued if graph.is_lifo and r % KINDS == COMMUNICATION else after
                push(ready[base[r] : base[r + 1]], clocks[r], key, after)
        for k in range(first, last + 1):
            r = resource[max(node, 0)]
            if k < last:
                r = resource[k if node < 0 else graph.followers[k]]
            if is_busy[r] or clocks[r, LENGTH] == 0:
                continue
            pop(ready[base[r] : base[r + 1]], clocks[r], event)
            task = event[1]
            start_ns[task], is_busy[r] = now, int(r % KINDS != RECEIVE)
            if group[task] == ALONE:
                push(running, clock, now + graph.duration_ns[task], task)
                continue
            missing[group[task]] -= 1
            if missing[group[task]] == 0:
                members = graph.first_member[group[task]], graph.first_member[group[task] + 1]
                for m in graph.members[members[0] : members[1]]:
                    push(running, clock, now + graph.duration_ns[m], m)
        if clock[LENGTH] == 0:
            return done
        pop(running, clock, event)
        now, node = event[0], event[1]
        end_ns[node] = now
        is_busy[resource[node]] = 0
        done += 1
