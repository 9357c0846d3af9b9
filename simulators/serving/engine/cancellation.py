"""A request leaves when it is answered or its client gives up; another may be waiting for that.

Closed clients ask again and users ask their next question once a request has left. Who has given up
is let go at the next decision of the replica, out of a batch when that ends.
"""

from __future__ import annotations

from math import inf

from simulators.core.jit import f8, i8
from simulators.serving.engine.kv_cache import drop_swapped, release
from simulators.serving.engine.replica import (
    ARRIVAL,
    BELOW,
    FLIGHT,
    IDLE,
    LEAVES,
    LEFT,
    NEXT,
    NOBODY,
    OLDEST,
    STAGES,
    SUCCESSOR,
    SWAPPED,
    TOP,
    WAITING,
    kernel,
    pop_waiting,
    push_waiting,
)
from simulators.serving.engine.state import NEXT_LEAVE, UNRELEASED, WORLD, World, push_release


@kernel(i8(WORLD, i8, f8))
def dismiss(world: World, replica: int, now: float) -> int:
    """Let go of the requests whose clients have given up, but for those in a batch; count them."""
    pool, request, times = world.pool[replica], world.request, world.times
    waiting, idle, limits = world.waiting[replica], world.idle[replica], world.limits
    gone, next_leave = 0, inf
    for _ in range(pool[WAITING]):
        who = pop_waiting(pool, waiting)
        if times[who, LEAVES] > now:
            push_waiting(pool, waiting, who)
            next_leave = min(next_leave, times[who, LEAVES])
        else:
            gone += let_go(world, who, now)
    kept = 0
    for i in range(pool[IDLE]):
        who = idle[i]
        if times[who, LEAVES] > now:
            idle[kept] = who
            kept += 1
            next_leave = min(next_leave, times[who, LEAVES])
        else:
            release(pool, request, who)
            gone += let_go(world, who, now)
    pool[IDLE] = kept
    who, above = pool[TOP], NOBODY
    for _ in range(pool[SWAPPED]):
        if times[who, LEAVES] > now:
            above = who
            next_leave = min(next_leave, times[who, LEAVES])
        else:
            drop_swapped(pool, request, who, above)
            gone += let_go(world, who, now)
        who = request[who, BELOW]
    for place in range(pool[FLIGHT]):
        stage = world.places[replica, (pool[OLDEST] + place) % limits[STAGES]]
        slot = replica * limits[STAGES] + stage
        for i in range(world.sizes[slot]):
            next_leave = min(next_leave, times[world.batch[slot, i], LEAVES])
    world.gauge[replica, NEXT_LEAVE] = next_leave
    return gone


@kernel(i8(WORLD, i8, f8))
def let_go(world: World, who: int, now: float) -> int:
    """Note that a request has left; return 1."""
    world.times[who, LEFT] = now
    release_successor(world, who, now)
    return 1


@kernel(i8(WORLD, i8, f8))
def release_successor(world: World, who: int, now: float) -> int:
    """Let the request that waits for this one's end arrive after its think time; return it."""
    follower = world.request[who, SUCCESSOR]
    if follower == NEXT:
        if world.clock[UNRELEASED] == world.request.shape[0]:
            return NOBODY
        follower = world.clock[UNRELEASED]
        world.clock[UNRELEASED] += 1
    if follower >= 0:
        world.times[follower, ARRIVAL] += now
        push_release(world, world.times[follower, ARRIVAL], follower)
    return follower  # type: ignore[no-any-return]
