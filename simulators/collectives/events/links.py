"""Links and their messages: served in turn link by link, or in max-min fair shares of a route.

First come, first served: a message that starts on a link at t is at the next device at t + latency
+ bytes/bandwidth, and the link is free again at t + bytes/bandwidth. This is the congestion-aware
model of ASTRA-sim (Won et al., 2023).

Fair shares: a message flows through all its links at the rate of the tightest, and arrives a
latency per link after its last byte has left. Every flow gets as much as it can without taking from
a flow that has less: the links fill up one after another, the tightest first (Bertsekas and
Gallager, "Data Networks", 1992, section 6.5). Long-lived transport on a lossless fabric tends to
these shares, which show incast of n senders and oversubscribed uplinks; a queue per message shows
neither.

In a fat tree a message turns around in its leaf switch if it can. Otherwise it takes the uplink
given by its destination's number, as static routing of InfiniBand does (Zahavi, 2012), or its share
of all uplinks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulators.collectives.events import state as at
from simulators.collectives.events.event_queue import push
from simulators.collectives.events.state import FLOWS, STATE, Flows, State
from simulators.collectives.topologies import blocks
from simulators.collectives.topologies.blocks import delay_ns, hops, wire_of
from simulators.core.jit import boolean, f8, i8, kernel, void

DONE: Final = 1e-12
"""Remaining share of a flow's bytes below which the flow has ended (rounding error)."""


@kernel(void(FLOWS, i8), no_refcount=True)
def fair_rates(flows: Flows, count: int) -> None:
    """Write the max-min fair rate of the first flows: fill the tightest links, and repeat.

    A link that is crossed twice counts twice.
    """
    flying, routes, shares = flows.flying, flows.routes, flows.shares
    free_bandwidth, load, used = flows.free_bandwidth, flows.load, flows.used
    links = 0
    for i in range(count):
        shares[flying[i], 1] = 0.0
        for link in routes[flying[i]]:
            if link < 0:
                break
            if load[link] == 0:
                used[links], free_bandwidth[link] = link, flows.capacity[link]
                links += 1
            load[link] += 1
    pending = count
    while pending > 0:
        tightest = np.inf
        for k in range(links):
            if load[used[k]] > 0:
                tightest = min(tightest, free_bandwidth[used[k]] / load[used[k]])
        for i in range(count):
            flow = flying[i]
            if shares[flow, 1] > 0.0:
                continue
            is_held = False
            for link in routes[flow]:
                if link >= 0 and free_bandwidth[link] <= tightest * load[link] * (1.0 + DONE):
                    is_held = True
            if is_held:
                shares[flow, 1] = tightest
                pending -= 1
        _fill(flows, count)


@kernel(void(FLOWS, i8), no_refcount=True)
def _fill(flows: Flows, count: int) -> None:
    """Write the free bandwidth of every link and the number of its flows without a rate."""
    flying, routes = flows.flying, flows.routes
    free_bandwidth, load = flows.free_bandwidth, flows.load
    for i in range(count):
        for link in routes[flying[i]]:
            if link >= 0:
                free_bandwidth[link], load[link] = flows.capacity[link], 0
    for i in range(count):
        rate = flows.shares[flying[i], 1]
        for link in routes[flying[i]]:
            if link < 0:
                break
            free_bandwidth[link] -= rate
            load[link] += int(rate == 0.0)


UP, DOWN, LEAF_UP, LEAF_DOWN = range(4)
"""Links of a rank at a switch or fat tree; on a ring the first two are the two directions. The
first ranks of a leaf switch own its uplinks."""
TINY_NS: Final = 1e-6
"""Rounding error of a sum of durations."""


@kernel(i8(i8, i8))
def links_of(block: int, ranks: int) -> int:
    """Return the number of links that a rank owns on one dimension."""
    if block == blocks.FULL_BLOCK:
        return ranks
    return 4 if block == blocks.FAT_TREE_BLOCK else 2


@kernel(i8(STATE, i8, i8, i8), no_refcount=True)
def neighbor(state: State, rank: int, d: int, ahead: int) -> int:
    """Return the rank that is `ahead` further along a dimension."""
    if state.is_alike[d]:
        return rank
    n, stride = state.whole[d, blocks.RANKS], state.strides[d]
    position = rank // stride % n
    to: int = rank + ((position + ahead) % n - position) * stride
    return to


@kernel(void(STATE, i8, i8, i8, i8, i8, i8, i8, i8), no_refcount=True)
def dispatch(
    state: State,
    now: int,
    rank: int,
    stream: int,
    d: int,
    ahead: int,
    size: int,
    slot: int,
    is_backwards: int,
) -> None:
    """Send a message to the rank that is `ahead` further along a dimension."""
    n, block = state.whole[d, blocks.RANKS], state.whole[d, blocks.BLOCK]
    spares = state.clock[at.SPARES] - 1
    state.clock[at.SPARES] = spares
    m = state.spare[spares]
    message = state.messages[m]
    to = neighbor(state, rank, d, ahead)
    track = UP
    if block == blocks.FULL_BLOCK:
        track = ahead
    elif block == blocks.RING_BLOCK:
        track = 0 if ahead < n - ahead or (2 * ahead == n and not is_backwards) else 1
    message[at.HERE], message[at.TO], message[at.STREAM] = rank, to, stream
    message[at.AXIS], message[at.BYTES], message[at.SLOT] = d, size, slot
    message[at.HOPS_LEFT] = hops(block, n, state.whole[d, blocks.LEAF], ahead)
    if block == blocks.FAT_TREE_BLOCK and not state.is_alike[d]:
        leaf, stride = state.whole[d, blocks.LEAF], state.strides[d]
        if rank // stride % n // leaf == to // stride % n // leaf:
            message[at.HOPS_LEFT] = 2
    message[at.STEP] = track
    message[at.TRACK] = rank * state.settings.owned + state.first_link[d] + track
    state.report[at.SENT_MESSAGES] += 1
    if state.settings.mode == at.SHARED:
        _share(state, m, now)
    elif state.settings.mode == at.IN_TURN:
        serve(state, m, now)
    else:
        message[at.HOPS_LEFT] = 1
        there = now + delay_ns(wire_of(state.whole[d], state.rates[d]), ahead, size)
        push(state.queue, state.clock, there, at.HOP + at.KINDS * m)


@kernel(void(STATE, i8, i8), no_refcount=True)
def serve(state: State, m: int, now: int) -> None:
    """Queue a message on the next link of the route, behind earlier messages."""
    message = state.messages[m]
    link = message[at.TRACK]
    serial = message[at.BYTES] / state.flows.capacity[link]
    start = max(now, state.free_at[link])
    state.free_at[link] = start + int(serial)
    state.busy_ns[link] += int(serial)
    there = start + int(state.rates[message[at.AXIS], blocks.LATENCY_NS] + serial)
    push(state.queue, state.clock, there, at.HOP + at.KINDS * m)


@kernel(boolean(STATE, i8), no_refcount=True)
def advance(state: State, m: int) -> bool:
    """Move a message to its next link; return whether there is a next link."""
    message = state.messages[m]
    left = message[at.HOPS_LEFT] - 1
    message[at.HOPS_LEFT] = left
    if left == 0:
        return False
    d = message[at.AXIS]
    own = state.settings.owned
    if state.whole[d, blocks.BLOCK] == blocks.RING_BLOCK:
        here = neighbor(state, message[at.HERE], d, 1 - 2 * message[at.STEP])
        message[at.HERE] = here
        message[at.TRACK] = here * own + state.first_link[d] + message[at.STEP]
        return True
    owner, stage = message[at.TO], DOWN
    if left > 1:
        stage = LEAF_UP if left == 3 else LEAF_DOWN
        if left == 3:
            owner = message[at.HERE]
        if not state.is_alike[d]:
            owner = _uplink(state, owner, message[at.TO], d)
    message[at.STEP] = stage
    message[at.TRACK] = owner * own + state.first_link[d] + stage
    return True


@kernel(i8(STATE, i8, i8, i8), no_refcount=True)
def _uplink(state: State, rank: int, to: int, d: int) -> int:
    """Return the rank of a leaf switch that owns the uplink towards `to`."""
    n, leaf, stride = state.whole[d, blocks.RANKS], state.whole[d, blocks.LEAF], state.strides[d]
    turn = 0 if state.settings.mode == at.SHARED else to // stride % n % state.uplinks[d]
    owner: int = rank + (turn - rank // stride % n % leaf) * stride
    return owner


@kernel(void(STATE, i8, i8))
def _share(state: State, m: int, now: int) -> None:
    """Start the flow of a message over all its links."""
    message = state.messages[m]
    count = message[at.HOPS_LEFT]
    route = state.flows.routes[m]
    route[:] = -1
    for i in range(count):
        route[i] = message[at.TRACK]
        advance(state, m)
    message[at.HOPS_LEFT], message[at.STARTED] = count, now
    state.flows.shares[m, at.LEFT], state.flows.shares[m, at.ELAPSED] = message[at.BYTES], 0.0
    flying = state.clock[at.FLYING]
    state.flows.flying[flying] = m
    state.clock[at.FLYING], state.clock[at.STALE] = flying + 1, 1


@kernel(boolean(STATE, f8))
def flow(state: State, until_ns: float) -> bool:
    """Advance all flows to `until_ns` or to the first completion; return whether one completed."""
    count, shares, clock = state.clock[at.FLYING], state.flows.shares, state.clock
    if clock[at.STALE]:
        fair_rates(state.flows, count)
        clock[at.STALE] = 0
        state.report[at.LINK_EVENTS] += count
    first_ns = until_ns - state.shared_until_ns[0]
    has_left = False
    for i in range(count):
        m = state.flows.flying[i]
        if shares[m, at.LEFT] <= shares[m, at.RATE] * first_ns:
            first_ns, has_left = shares[m, at.LEFT] / shares[m, at.RATE], True
    first_ns = max(first_ns, 0.0)
    state.shared_until_ns[0] += first_ns
    kept = 0
    for i in range(count):
        m = state.flows.flying[i]
        shares[m, at.LEFT] -= shares[m, at.RATE] * first_ns
        shares[m, at.ELAPSED] += first_ns
        if has_left and shares[m, at.LEFT] <= DONE * state.messages[m, at.BYTES]:
            _leave(state, m)
        else:
            state.flows.flying[kept] = m
            kept += 1
    clock[at.FLYING] = kept
    clock[at.STALE] = int(kept < count)
    return has_left


@kernel(void(STATE, i8), no_refcount=True)
def _leave(state: State, m: int) -> None:
    """Schedule the arrival of a message whose last byte has left: a latency per link later."""
    message = state.messages[m]
    for link in state.flows.routes[m]:
        if link >= 0:
            state.busy_ns[link] += message[at.BYTES] / state.flows.capacity[link]
    latency_ns = message[at.HOPS_LEFT] * state.rates[message[at.AXIS], blocks.LATENCY_NS]
    late_ns = latency_ns + state.flows.shares[m, at.ELAPSED]
    message[at.HOPS_LEFT] = 1
    there = message[at.STARTED] + int(late_ns + TINY_NS)
    push(state.queue, state.clock, there, at.HOP + at.KINDS * m)
