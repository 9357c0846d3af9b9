"""The KV cache of a prompt goes from the replica that has read it to the one that decodes.

Once a prompt is read, a router chooses who decodes. There it takes its turn until a seat and blocks
are free; then its cache moves, and with the cache the first token is out. Until then the reader
keeps the blocks: where nobody can decode, prompts cannot be read either. A link moves one cache
after another at either end. Where layers are sent while later ones are still computed (Patel et
al., "Splitwise", 2024), only what that time did not suffice for comes afterwards, at least the last
layer; a cache that finds no room at once is sent whole.
"""

from __future__ import annotations

from typing import Any

from simulators.core.jit import f8, i8, pointer
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import blocks_for, fits
from simulators.serving.engine.prefix_cache import leave
from simulators.serving.engine.replica import ROUTE, kernel
from simulators.serving.engine.state import (
    STATE,
    ReplicaState,
    keep_sums,
    push_release,
    tick,
)


@kernel(i8(STATE, i8, i8, f8))
def start_kv_transfer(state: ReplicaState, reader: int, who: int, now: float) -> int:
    """Give up the seat of a request whose prompt has been read, to be passed on; return it."""
    state.pool[reader, at.HOLDERS] -= 1
    state.times[who, at.READ] = now
    keep_sums(state, reader, who, at.READER_SUMS)
    push_release(state, now, who)
    return who


@kernel(i8(pointer(ROUTE), STATE, i8, f8))
def advance_kv_transfer(route: Any, state: ReplicaState, who: int, now: float) -> int:
    """Take the next step of a request whose prompt has been read; return the replica it is at.

    The request joins the queue of a decode replica, or its KV cache has arrived there.
    """
    if state.times[who, at.SENDING] >= 0.0:
        return receive(state, who, now)
    return forward_request(route, state, who, now)


@kernel(i8(pointer(ROUTE), STATE, i8, f8))
def forward_request(route: Any, state: ReplicaState, who: int, now: float) -> int:
    """Choose who decodes a prompt that has been read, where it takes its turn; return who that is.

    Routers see of such replicas who waits or runs there, and nothing of prefixes.
    """
    load, request, readers = state.load, state.request, state.limits[at.READERS]
    replica = readers + route(
        state.clock[at.PASSED_ON],
        load[at.QUEUED][readers:],
        load[at.RUNNING][readers:],
        load[at.FOUND][readers:],
        state.draws[who],
    )
    state.clock[at.PASSED_ON] += 1
    request[who, at.READER], request[who, at.REPLICA] = request[who, at.REPLICA], replica
    pool, ring = state.pool[replica], state.handed[replica]
    tick(pool, state.gauge[replica], now)
    ring[(pool[at.HANDED_HEAD] + pool[at.HANDED]) & (ring.size - 1)] = who
    pool[at.HANDED] += 1
    send_waiting(state, replica, now)
    load[at.QUEUED, replica] = pool[at.WAITING] + pool[at.SWAPPED] + pool[at.HANDED]
    load[at.RUNNING, replica] = pool[at.HOLDERS]
    return replica  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def send_waiting(state: ReplicaState, replica: int, now: float) -> int:
    """Have caches sent to a replica, in turn, while seats and blocks are free; return how many.

    Nobody overtakes a request that was preempted there.
    """
    pool, ring, request, limits = (
        state.pool[replica],
        state.handed[replica],
        state.request,
        state.own[1],
    )
    sent = 0
    while pool[at.HANDED] > 0:
        who = ring[pool[at.HANDED_HEAD]]
        prompt = blocks_for(request[who, at.PROMPT], limits[at.BLOCK])
        life = limits[at.LIFELONG] * request[who, at.OUTPUT]
        blocks = blocks_for(request[who, at.PROMPT] + life, limits[at.BLOCK])
        free = pool[at.HOLDERS] < limits[at.SEATS] and pool[at.WAITING] + pool[at.SWAPPED] == 0
        if not (free and fits(limits, pool, blocks)):
            break
        pool[at.HANDED_HEAD] = (pool[at.HANDED_HEAD] + 1) & (ring.size - 1)
        pool[at.HANDED] -= 1
        request[who, at.KEPT_BLOCKS] = blocks
        pool[at.FREE] -= blocks
        pool[at.HOLDERS] += 1
        push_release(state, arrival_s(state, who, prompt * limits[at.BLOCK], now), who)
        sent += 1
    return sent


@kernel(f8(STATE, i8, i8, f8))
def arrival_s(state: ReplicaState, who: int, tokens: int, now: float) -> float:
    """Return when a cache of so many tokens is there, for which room has been found now."""
    times, gauge, request = state.times[who], state.gauge, state.request[who]
    reader, replica = request[at.READER], request[at.REPLICA]
    times[at.SENDING] = now
    whole_s, parts = state.link[at.TOKEN_S] * tokens, 1.0
    if now == times[at.READ]:
        parts = state.link[at.LAYERS]
    reading_s = times[at.READ] - times[at.SCHEDULED]
    begun = now - reading_s * (parts - 1.0) / parts
    begun = max(begun, gauge[reader, at.LINK_FREE_S], gauge[replica, at.LINK_FREE_S])
    sent = max(begun + whole_s, now + whole_s / parts)
    gauge[reader, at.LINK_FREE_S] = gauge[replica, at.LINK_FREE_S] = sent
    return sent + state.link[at.SETUP_S]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def receive(state: ReplicaState, who: int, now: float) -> int:
    """Let a request decode whose cache has arrived, with its first token; return its replica."""
    request, times, replica = state.request, state.times, state.request[who, at.REPLICA]
    free_reader(state, who, now)
    pool = state.pool[replica]
    tick(pool, state.gauge[replica], now)
    request[who, at.BLOCKS] = request[who, at.KEPT_BLOCKS]
    times[who, at.FIRST_TOKEN] = times[who, at.LAST_TOKEN] = times[who, at.LAST_END] = now
    state.idle[replica, pool[at.IDLE]] = who
    pool[at.IDLE] += 1
    state.load[at.TOUCHED, replica] = 1
    return replica  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def free_reader(state: ReplicaState, who: int, now: float) -> int:
    """Take back the blocks that a prompt's reader has kept; return the reader."""
    reader = state.request[who, at.READER]
    pool = state.pool[reader]
    tick(pool, state.gauge[reader], now)
    pool[at.FREE] += leave(state.own[0], pool, state.request, state.tree, who)
    state.load[at.TOUCHED, reader] = 1
    return reader  # type: ignore[no-any-return]
