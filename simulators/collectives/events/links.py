"""Links and the messages on them: link by link in turn, or all links of a route in fair shares.

First come, first served: a message that starts on a link at t is at the next device at
t + latency + bytes/bandwidth, and the link is free again at t + bytes/bandwidth. This is the
congestion-aware model of ASTRA-sim (Won et al., 2023). In fair shares a message flows through all
its links at the rate of its tightest, and arrives a latency per link after its last byte has left.

In a fat tree a message turns round in its leaf switch if it can. Else it takes the uplink that its
destination's number names, as static routing of InfiniBand does (Zahavi, 2012), or its share of all
uplinks together.
"""

from __future__ import annotations

from typing import Final

from simulators.collectives.events import state as at
from simulators.collectives.events.event_queue import push
from simulators.collectives.events.fair_shares import DONE, fair_rates
from simulators.collectives.events.state import WORLD, World
from simulators.collectives.topologies.blocks import (
    BLOCK,
    FAT_TREE_BLOCK,
    FULL_BLOCK,
    LATENCY_NS,
    LEAF,
    RANKS,
    RING_BLOCK,
    delay_ns,
    hops,
    wire_of,
)
from simulators.core.jit import boolean, f8, i8, kernel, void

UP, DOWN, LEAF_UP, LEAF_DOWN = range(4)
"""Links of a rank at a switch or fat tree; on a ring the first two are its two directions. The
uplinks of a leaf switch are owned by its first ranks."""
TINY_NS: Final = 1e-6
"""What sums of durations may lack to a whole nanosecond: rounding, not time."""


@kernel(i8(i8, i8))
def links_of(block: int, ranks: int) -> int:
    """Return how many links a rank owns on one dimension."""
    if block == FULL_BLOCK:
        return ranks
    return 4 if block == FAT_TREE_BLOCK else 2


@kernel(i8(WORLD, i8, i8, i8), borrows=True)
def moved(world: World, rank: int, d: int, ahead: int) -> int:
    """Return the rank that is `ahead` further along a dimension."""
    if world.is_alike[d]:
        return rank
    n, stride = world.whole[d, RANKS], world.strides[d]
    position = rank // stride % n
    to: int = rank + ((position + ahead) % n - position) * stride
    return to


@kernel(void(WORLD, i8, i8, i8, i8, i8, i8, i8, i8), borrows=True)
def dispatch(
    world: World, now: int, rank: int, stream: int, d: int, ahead: int, size: int, slot: int,
    is_backwards: int,
) -> None:  # fmt: skip
    """Send a message to the rank that is `ahead` further along a dimension."""
    n, block = world.whole[d, RANKS], world.whole[d, BLOCK]
    spares = world.clock[at.SPARES] - 1
    world.clock[at.SPARES] = spares
    m = world.spare[spares]
    message = world.messages[m]
    to = moved(world, rank, d, ahead)
    track = UP
    if block == FULL_BLOCK:
        track = ahead
    elif block == RING_BLOCK:
        track = 0 if ahead < n - ahead or (2 * ahead == n and not is_backwards) else 1
    message[at.HERE], message[at.TO], message[at.STREAM] = rank, to, stream
    message[at.AXIS], message[at.BYTES], message[at.SLOT] = d, size, slot
    message[at.HOPS_LEFT] = hops(block, n, world.whole[d, LEAF], ahead)
    if block == FAT_TREE_BLOCK and not world.is_alike[d]:
        leaf, stride = world.whole[d, LEAF], world.strides[d]
        if rank // stride % n // leaf == to // stride % n // leaf:
            message[at.HOPS_LEFT] = 2
    message[at.STEP] = track
    message[at.TRACK] = rank * world.settings.owned + world.first_link[d] + track
    world.report[at.SENT_MESSAGES] += 1
    if world.settings.mode == at.SHARED:
        _share(world, m, now)
    elif world.settings.mode == at.IN_TURN:
        serve(world, m, now)
    else:
        message[at.HOPS_LEFT] = 1
        there = now + delay_ns(wire_of(world.whole[d], world.rates[d]), ahead, size)
        push(world.queue, world.clock, there, at.HOP + at.KINDS * m)


@kernel(void(WORLD, i8, i8), borrows=True)
def serve(world: World, m: int, now: int) -> None:
    """Put a message on its next link, behind those before it."""
    message = world.messages[m]
    link = message[at.TRACK]
    serial = message[at.BYTES] / world.capacity[link]
    start = max(now, world.free_at[link])
    world.free_at[link] = start + int(serial)
    world.busy_ns[link] += int(serial)
    there = start + int(world.rates[message[at.AXIS], LATENCY_NS] + serial)
    push(world.queue, world.clock, there, at.HOP + at.KINDS * m)


@kernel(boolean(WORLD, i8), borrows=True)
def pass_on(world: World, m: int) -> bool:
    """Move a message to its next link, and say whether there is one."""
    message = world.messages[m]
    left = message[at.HOPS_LEFT] - 1
    message[at.HOPS_LEFT] = left
    if left == 0:
        return False
    d = message[at.AXIS]
    own = world.settings.owned
    if world.whole[d, BLOCK] == RING_BLOCK:
        here = moved(world, message[at.HERE], d, 1 - 2 * message[at.STEP])
        message[at.HERE] = here
        message[at.TRACK] = here * own + world.first_link[d] + message[at.STEP]
        return True
    owner, stage = message[at.TO], DOWN
    if left > 1:
        stage = LEAF_UP if left == 3 else LEAF_DOWN
        if left == 3:
            owner = message[at.HERE]
        if not world.is_alike[d]:
            owner = _uplink(world, owner, message[at.TO], d)
    message[at.STEP] = stage
    message[at.TRACK] = owner * own + world.first_link[d] + stage
    return True


@kernel(i8(WORLD, i8, i8, i8), borrows=True)
def _uplink(world: World, rank: int, to: int, d: int) -> int:
    """Return the rank of a leaf switch that owns the uplink towards `to`."""
    n, leaf, stride = world.whole[d, RANKS], world.whole[d, LEAF], world.strides[d]
    turn = 0 if world.settings.mode == at.SHARED else to // stride % n % world.uplinks[d]
    owner: int = rank + (turn - rank // stride % n % leaf) * stride
    return owner


@kernel(void(WORLD, i8, i8))
def _share(world: World, m: int, now: int) -> None:
    """Let a message flow over all its links."""
    message = world.messages[m]
    count = message[at.HOPS_LEFT]
    route = world.routes[m]
    route[:] = -1
    for i in range(count):
        route[i] = message[at.TRACK]
        pass_on(world, m)
    message[at.HOPS_LEFT], message[at.STARTED] = count, now
    world.shares[m, at.LEFT], world.shares[m, at.ELAPSED] = message[at.BYTES], 0.0
    flying = world.clock[at.FLYING]
    world.flying[flying] = m
    world.clock[at.FLYING], world.clock[at.STALE] = flying + 1, 1


@kernel(boolean(WORLD, f8))
def flow(world: World, until_ns: float) -> bool:
    """Let messages flow until a moment, or until the first of them have left; say whether any."""
    count, shares, clock = world.clock[at.FLYING], world.shares, world.clock
    if clock[at.STALE]:
        fair_rates(
            world.flying, count, world.routes, world.capacity, shares, world.room, world.load,
            world.used,
        )  # fmt: skip
        clock[at.STALE] = 0
        world.report[at.LINK_EVENTS] += count
    first_ns = until_ns - world.shared_until_ns[0]
    has_left = False
    for i in range(count):
        m = world.flying[i]
        if shares[m, at.LEFT] <= shares[m, at.RATE] * first_ns:
            first_ns, has_left = shares[m, at.LEFT] / shares[m, at.RATE], True
    first_ns = max(first_ns, 0.0)
    world.shared_until_ns[0] += first_ns
    kept = 0
    for i in range(count):
        m = world.flying[i]
        shares[m, at.LEFT] -= shares[m, at.RATE] * first_ns
        shares[m, at.ELAPSED] += first_ns
        if has_left and shares[m, at.LEFT] <= DONE * world.messages[m, at.BYTES]:
            _leave(world, m)
        else:
            world.flying[kept] = m
            kept += 1
    clock[at.FLYING] = kept
    clock[at.STALE] = int(kept < count)
    return has_left


@kernel(void(WORLD, i8), borrows=True)
def _leave(world: World, m: int) -> None:
    """The last byte of a message has left: it arrives after the latency of its links."""
    message = world.messages[m]
    for link in world.routes[m]:
        if link >= 0:
            world.busy_ns[link] += message[at.BYTES] / world.capacity[link]
    latency_ns = message[at.HOPS_LEFT] * world.rates[message[at.AXIS], LATENCY_NS]
    late_ns = latency_ns + world.shares[m, at.ELAPSED]
    message[at.HOPS_LEFT] = 1
    there = message[at.STARTED] + int(late_ns + TINY_NS)
    push(world.queue, world.clock, there, at.HOP + at.KINDS * m)
