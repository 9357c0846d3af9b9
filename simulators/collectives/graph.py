"""Compute and communication overlap as far as dependencies and one device of each kind allow.

A graph's nodes run when all they wait for has ended and their resource is free; of several that are
ready, the one with the lowest number goes first, as ASTRA-sim's workload layer issues them. A rank
has one resource for compute and one for communication. What communication costs a step is not its
sum but what is exposed: the time that compute does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulators.collectives.heap import COUNTERS, LENGTH, pop, push
from simulators.core.errors import UserError
from simulators.core.jit import Ints, arrays, i8, kernel

COMPUTE, COMMUNICATION = range(2)


@dataclass(frozen=True)
class Node:
    """One operator of a graph, on one resource of one rank."""

    name: str
    duration_ns: int
    after: tuple[int, ...] = ()  # positions of the nodes it waits for
    resource: int = COMPUTE
    rank: int = 0


@dataclass(frozen=True)
class Timeline:
    """When nodes ran, and what that means for the step."""

    start_ns: Ints = field(repr=False)
    end_ns: Ints = field(repr=False)
    finish_ns: int
    compute_total_ns: int  # of the busiest rank
    comm_total_ns: int
    comm_exposed_ns: int  # the step less the compute of its busiest rank


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes as arrays: durations, resources, and who waits for whom."""

    duration_ns: Ints
    resource: Ints  # 2 * rank + kind
    waits_for: Ints  # how many
    first_follower: Ints  # into `followers`, one more than nodes
    followers: Ints


def graph_of(nodes: Sequence[Node]) -> Graph:
    """Return the arrays of a graph.

    Raises:
        UserError: a node waits for one that does not exist, or takes less than no time.
    """
    count = len(nodes)
    for i, node in enumerate(nodes):
        if node.duration_ns < 0:
            raise UserError(f"node {i} '{node.name}' takes {node.duration_ns} ns")
        for before in node.after:
            if not 0 <= before < count:
                raise UserError(
                    f"node {i} '{node.name}' waits for node {before}; there are {count} nodes"
                )
    source = np.array([b for node in nodes for b in node.after], np.int64)
    target = np.array([i for i, node in enumerate(nodes) for _ in node.after], np.int64)
    order = np.argsort(source, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count)))).astype(np.int64)
    return Graph(
        duration_ns=np.array([n.duration_ns for n in nodes], np.int64),
        resource=np.array([2 * n.rank + n.resource for n in nodes], np.int64),
        waits_for=np.array([len(n.after) for n in nodes], np.int64),
        first_follower=starts,
        followers=target[order] if target.size else np.zeros(1, np.int64),
    )


def timeline(graph: Graph) -> Timeline:
    """Return when every node runs.

    Raises:
        UserError: some nodes wait for each other.

    >>> step = graph_of([
    ...     Node("forward", 10), Node("gradient", 20, (0,)),
    ...     Node("all_reduce", 30, (1,), COMMUNICATION), Node("rest", 25, (1,)),
    ... ])
    >>> timeline(step).finish_ns, timeline(step).comm_exposed_ns
    (60, 5)
    """
    count = graph.duration_ns.size
    start, end = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    done = run_graph(
        graph.duration_ns, graph.resource, graph.waits_for, graph.first_follower, graph.followers,
        start, end,
    )  # fmt: skip
    if done < count:
        stuck = int(np.flatnonzero(end < 0)[0])
        raise UserError(f"{count - done} nodes wait for each other, node {stuck} among them")
    finish = int(end.max()) if count else 0
    kind, rank = graph.resource % 2, graph.resource // 2
    busy = np.bincount(rank[kind == COMPUTE], graph.duration_ns[kind == COMPUTE]).astype(np.int64)
    talk = np.bincount(rank[kind != COMPUTE], graph.duration_ns[kind != COMPUTE]).astype(np.int64)
    compute = int(busy.max()) if busy.size else 0
    return Timeline(
        start_ns=start,
        end_ns=end,
        finish_ns=finish,
        compute_total_ns=compute,
        comm_total_ns=int(talk.max()) if talk.size else 0,
        comm_exposed_ns=finish - compute,
    )


@kernel(i8(*arrays(i8, 7)))
def run_graph(
    duration_ns: Ints,
    resource: Ints,
    waits_for: Ints,
    first_follower: Ints,
    followers: Ints,
    start_ns: Ints,
    end_ns: Ints,
) -> int:
    """Write starts and ends, and return how many nodes ran."""
    count = duration_ns.size
    if count == 0:
        return 0
    left = waits_for.copy()
    resources = np.max(resource) + 1
    is_busy = np.zeros(resources, np.int64)
    # Ready nodes queue by resource, then number: one sorted list of lists in a single heap each.
    members = np.zeros(resources + 1, np.int64)
    for i in range(count):
        members[resource[i] + 1] += 1
    base = np.cumsum(members)
    ready = np.zeros((count, 3), np.int64)
    sizes = np.zeros((resources, COUNTERS), np.int64)
    running = np.zeros((resources + 1, 3), np.int64)
    clock = np.zeros(COUNTERS, np.int64)
    event = np.zeros(2, np.int64)
    for i in range(count):
        if left[i] == 0:
            r = resource[i]
            push(ready[base[r] : base[r + 1]], sizes[r], i, i)
    for r in range(resources):
        if sizes[r, LENGTH] > 0:
            pop(ready[base[r] : base[r + 1]], sizes[r], event)
            start_ns[event[1]], is_busy[r] = 0, 1
            push(running, clock, duration_ns[event[1]], event[1])
    done = 0
    while clock[LENGTH] > 0:
        pop(running, clock, event)
        now, node = event[0], event[1]
        end_ns[node] = now
        done += 1
        is_busy[resource[node]] = 0
        for k in range(first_follower[node], first_follower[node + 1]):
            after = followers[k]
            left[after] -= 1
            if left[after] == 0:
                r = resource[after]
                push(ready[base[r] : base[r + 1]], sizes[r], after, after)
        # Whatever became ready at this instant is issued in order of resource.
        for k in range(first_follower[node], first_follower[node + 1] + 1):
            r = resource[node]
            if k < first_follower[node + 1]:
                r = resource[followers[k]]
            if is_busy[r] == 0 and sizes[r, LENGTH] > 0:
                pop(ready[base[r] : base[r + 1]], sizes[r], event)
                start_ns[event[1]], is_busy[r] = now, 1
                push(running, clock, now + duration_ns[event[1]], event[1])
    return done
