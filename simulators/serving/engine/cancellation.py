"""Requests whose clients give up are let go.

Who has given up is let go at the next decision of the replica, out of a batch when that ends.
"""

from __future__ import annotations

from math import inf

from simulators.core.jit import f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import drop_swapped, release
from simulators.serving.engine.replica import kernel, pop_waiting, push_waiting
from simulators.serving.engine.state import STATE, ReplicaState, let_go


@kernel(i8(STATE, i8, f8))
def abort_requests(state: ReplicaState, replica: int, now: float) -> int:
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
