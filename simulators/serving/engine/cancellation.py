"""Requests whose clients give up are let go, and whoever waits for a request's end may arrive.

Who has given up is let go at the next decision of the replica, out of a batch when that ends.
Closed clients ask again and users ask their next question once a request has left.
"""

from __future__ import annotations

from math import inf

from simulators.core.jit import Floats, arrays, f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import drop_swapped, release
from simulators.serving.engine.replica import kernel, pop_waiting, push_waiting
from simulators.serving.engine.state import STATE, State, push_release


@kernel(i8(STATE, i8, f8))
def dismiss(state: State, replica: int, now: float) -> int:
    """Let go of the requests whose clients have given up, but for those in a batch; count them."""
    pool, request, times = state.pool[replica], state.request, state.times
    waiting, idle, limits = state.waiting[replica], state.idle[replica], state.limits
    gone, next_leave = 0, inf
    for _ in range(pool[at.WAITING]):
        who = pop_waiting(pool, waiting)
        if times[who, at.LEAVES] > now:
            push_waiting(pool, waiting, who)
            next_leave = min(next_leave, times[who, at.LEAVES])
        else:
            gone += let_go(state, who, now)
    kept = 0
    for i in range(pool[at.IDLE]):
        who = idle[i]
        if times[who, at.LEAVES] > now:
            idle[kept] = who
            kept += 1
            next_leave = min(next_leave, times[who, at.LEAVES])
        else:
            release(limits, pool, request, state.tree, who)
            gone += let_go(state, who, now)
    pool[at.IDLE] = kept
    who, above = pool[at.TOP], at.NOBODY
    for _ in range(pool[at.SWAPPED]):
        if times[who, at.LEAVES] > now:
            above = who
            next_leave = min(next_leave, times[who, at.LEAVES])
        else:
            drop_swapped(pool, request, who, above)
            gone += let_go(state, who, now)
        who = request[who, at.BELOW]
    for place in range(pool[at.FLIGHT]):
        stage = state.in_flight[replica, (pool[at.OLDEST] + place) % limits[at.STAGES]]
        slot = replica * limits[at.STAGES] + stage
        for i in range(state.sizes[slot]):
            next_leave = min(next_leave, times[state.batch[slot, i], at.LEAVES])
    state.gauge[replica, at.NEXT_LEAVE] = next_leave
    return gone


@kernel(i8(STATE, i8, f8))
def let_go(state: State, who: int, now: float) -> int:
    """Note that a request has left; return 1."""
    state.times[who, at.LEFT] = now
    release_successor(state, who, now)
    return 1


@kernel(f8(*arrays(f8, 1), *arrays(f8, 1), f8))
def pass_server(times: Floats, gauge: Floats, now: float) -> float:
    """Write when a released request is asked, and when it has passed the server; return that.

    The server works on one request after another; what else it takes to the engine does not queue.
    """
    delay_s = times[at.ASKED]
    times[at.ASKED] = times[at.ARRIVAL] + now
    gauge[at.SERVED_S] = max(gauge[at.SERVED_S], times[at.ASKED]) + times[at.SERVICE]
    times[at.ARRIVAL] = gauge[at.SERVED_S] + delay_s
    return times[at.ARRIVAL]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def release_successor(state: State, who: int, now: float) -> int:
    """Let the request that waits for this one's end arrive after its think time; return it."""
    follower = state.request[who, at.SUCCESSOR]
    if follower == at.NEXT:
        if state.clock[at.UNRELEASED] == state.request.shape[0]:
            return at.NOBODY
        follower = state.clock[at.UNRELEASED]
        state.clock[at.UNRELEASED] += 1
    if follower >= 0:
        pass_server(state.times[follower], state.gauge[0], now)
        push_release(state, state.times[follower, at.ARRIVAL], follower)
    return follower  # type: ignore[no-any-return]
