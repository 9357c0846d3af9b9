"""The event loop: requests arrive, batches end, and replicas form the next ones.

A replica forms a batch only when a request arrives or a batch ends, and only while fewer batches
are in flight than it has pipeline stages. Each stage is a server that takes batches in order, so
the times of a batch at all stages are known when it is formed. An output token comes with the end
of a prefill and of every later iteration.

Events are ordered by time; at one instant arrivals come first, in the order of requests, then the
ends of batches, in the order of replicas. Where some replicas read prompts for others, a request
arrives again when its prompt is read and when its KV cache is there.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from simulators.core.jit import boolean, f8, i8, pointer
from simulators.serving.engine import replica as at
from simulators.serving.engine.batch_sums import join, measure
from simulators.serving.engine.drafts import drafted, drafts_change
from simulators.serving.engine.frontend import show_late
from simulators.serving.engine.kv_cache import blocks_for, may_return, release, swap_in
from simulators.serving.engine.prefix_cache import cached_tokens, publish_batch
from simulators.serving.engine.replica import (
    PRICE,
    RARE,
    ROUTE,
    SCHEDULE,
    View,
    kernel,
    push_waiting,
    sort_by_arrival,
)
from simulators.serving.engine.skip_ahead import (
    possible_repeats,
    repeat_first,
    run_stages,
    stop_repeating,
)
from simulators.serving.engine.state import (
    STATE,
    ReplicaState,
    count,
    gap_bin,
    keep_sums,
    log_batch,
    pool_of,
    pop_release,
    release_successor,
    tick,
)
from simulators.serving.pools.handover import advance_kv_transfer, send_waiting, start_kv_transfer


@kernel(i8(pointer(SCHEDULE), pointer(ROUTE), pointer(PRICE), STATE))
def run(schedule: Any, route: Any, price: Any, state: ReplicaState) -> int:
    """Process events until none is left; return the number of unfinished requests.

    Requests stay unfinished only if the scheduler forms no batch although nothing runs, or if the
    price of a batch is not a number.
    """
    pool, ends = state.pool, state.ends
    closed = state.released.size > 0
    while True:
        arrival = next_arrival(state)
        first, second, replica = inf, inf, -1
        for r in range(pool.shape[0]):
            if pool[r, at.FLIGHT] > 0:
                end = ends[r, state.in_flight[r, pool[r, at.OLDEST]]]
                if end < first:
                    first, second, replica = end, first, r
                elif end < second:
                    second = end
        if arrival == inf and first == inf:
            break
        if arrival <= first:
            arrive(route, state, arrival)
            for r in range(pool.shape[0]):
                if state.load[at.TOUCHED, r] > 0:
                    stop_repeating(state, r)
                    form(schedule, price, state, r, arrival)
                    find_room(state, r, arrival)
        else:
            # An end at the very instant of another replica's comes before it.
            until = min(arrival, np.nextafter(second, inf)) if closed else arrival
            advance(schedule, price, state, replica, until, closed)
    unfinished = 0
    for who in range(state.times.shape[0]):
        if state.times[who, at.COMPLETED] < 0.0:
            unfinished += 1
    return unfinished


@kernel(f8(STATE))
def next_arrival(state: ReplicaState) -> float:
    """Return when the next request arrives; requests released by others are passed over."""
    clock = state.clock
    while clock[at.LISTED] < state.request.shape[0]:
        if state.request[clock[at.LISTED], at.REPLICA] == at.UNROUTED:
            break
        clock[at.LISTED] += 1
    listed = inf
    if clock[at.LISTED] < state.request.shape[0]:
        listed = state.times[clock[at.LISTED], at.ARRIVAL]
    if clock[at.RELEASED] > 0:
        return min(listed, state.released[0])  # type: ignore[no-any-return]
    return listed


@kernel(i8(pointer(ROUTE), STATE, f8))
def arrive(route: Any, state: ReplicaState, now: float) -> int:
    """Route all requests that arrive now, in order; return how many have arrived so far."""
    pool, load, clock = state.pool, state.load, state.clock
    for r in range(pool.shape[0]):
        load[at.QUEUED, r] = pool[r, at.WAITING] + pool[r, at.SWAPPED] + pool[r, at.HANDED]
        load[at.RUNNING, r] = pool[r, at.HOLDERS]
        load[at.TOUCHED, r] = 0
    rank = clock[at.ARRIVED]
    while next_arrival(state) == now:
        who = clock[at.LISTED]
        if clock[at.RELEASED] > 0 and state.released[0] == now:
            who = pop_release(state)
        if RARE and state.request[who, at.REPLICA] >= 0:
            advance_kv_transfer(route, state, who, now)
            continue
        if RARE and state.limits[at.CACHES] == 1:
            find_everywhere(state, who)
        there = state.request[who, at.ROUTABLE]
        queued, running, found = load[at.QUEUED], load[at.RUNNING], load[at.FOUND]
        replica = route(
            clock[at.ARRIVED], queued[:there], running[:there], found[:there], state.draws[who]
        )
        state.request[who, at.REPLICA] = replica
        state.request[who, at.RANK] = rank
        tick(pool[replica], state.gauge[replica], now)
        push_waiting(pool[replica], state.waiting[replica], who)
        load[at.QUEUED, replica] += 1
        load[at.TOUCHED, replica] = 1
        clock[at.ARRIVED] += 1
    return clock[at.ARRIVED]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def find_everywhere(state: ReplicaState, who: int) -> int:
    """Note how many thousandths of a prompt each replica's cache has; count who may read it."""
    found, request = state.load[at.FOUND], state.request
    doors = state.limits[at.READERS] or found.size
    for r in range(doors):
        cached = cached_tokens(state.limits, state.pool[r], request, state.tree, who)
        found[r] = 1000 * cached // request[who, at.PROMPT]
    return doors  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def find_room(state: ReplicaState, replica: int, now: float) -> int:
    """Have caches sent to a replica, all of its ranks, that has room for them; return how many."""
    first, sent = replica - replica % state.limits[at.RANKS], 0
    for rank in range(first, first + state.limits[at.RANKS]):
        if RARE and state.pool[rank, at.HANDED] > 0:
            sent += send_waiting(state, rank, now)
    return sent


@kernel(i8(pointer(SCHEDULE), pointer(PRICE), STATE, i8, f8))
def form(schedule: Any, price: Any, state: ReplicaState, replica: int, now: float) -> int:
    """Form batches while a place in the pipeline is free; return how many are in flight.

    Requests that are left over, waiting or idle, may change what becomes of the next batch to end.
    """
    if RARE and state.limits[at.RANKS] > 1:
        return form_together(schedule, price, state, replica, now)
    pool, stages = state.pool[replica], state.limits[at.STAGES]
    if pool[at.FLIGHT] < stages:
        tick(pool, state.gauge[replica], now)
    while pool[at.FLIGHT] < stages:
        place = state.in_flight[replica, (pool[at.OLDEST] + pool[at.FLIGHT]) % stages]
        slot = replica * stages + place
        holds = decide(schedule, state, replica, slot, now)
        if pool[at.BATCH] == 0:
            break
        rounds = state.rounds[slot]
        rounds[at.GROWTH], rounds[at.LEADS] = state.sizes[slot], 1
        ready = now + moving_s(state, replica)
        state.ends[replica, place] = launch(price, state, replica, slot, now, ready)
        rounds[at.REPEATS] = possible_repeats(state, slot, holds) if holds > 1 else 0
    if stages > 1 and pool[at.WAITING] + pool[at.IDLE] + pool[at.SWAPPED] > 0:
        stop_repeating(state, replica)
    return pool[at.FLIGHT]  # type: ignore[no-any-return]


@kernel(i8(pointer(SCHEDULE), pointer(PRICE), STATE, i8, f8))
def form_together(schedule: Any, price: Any, state: ReplicaState, replica: int, now: float) -> int:
    """Form the batches of all ranks of a replica, unless one is at work; return how many did.

    Layers of experts exchange tokens between all ranks, so that iterations begin and end together:
    each waits for the busiest, and for the last to have moved its blocks.
    """
    ranks, formed, moved_s = state.limits[at.RANKS], 0, 0.0
    first = replica - replica % ranks
    for rank in range(first, first + ranks):
        if state.pool[rank, at.FLIGHT] > 0:
            return 0
    repeats = at.FOREVER
    for rank in range(first, first + ranks):
        tick(state.pool[rank], state.gauge[rank], now)
        holds = decide(schedule, state, rank, rank, now)
        if state.pool[rank, at.BATCH] == 0:
            state.sizes[rank] = 0
            continue
        formed += 1
        moved_s = max(moved_s, moving_s(state, rank))
        mine = possible_repeats(state, rank, holds) if holds > 1 else 0
        rounds_of_blocks = max(0, state.pool[rank, at.FREE] - 1) // state.sizes[rank]
        repeats = min(repeats, mine, rounds_of_blocks * state.limits[at.BLOCK])
    if formed == 0:
        return 0
    growth = join(state, first)
    leads = 1
    for rank in range(first, first + ranks):
        if state.sizes[rank] > 0:
            rounds = state.rounds[rank]
            rounds[at.GROWTH], rounds[at.LEADS], rounds[at.REPEATS] = growth, leads, repeats
            state.ends[rank, 0] = launch(price, state, rank, rank, now, now + moved_s)
            leads = 0
    return formed


@kernel(f8(STATE, i8))
def moving_s(state: ReplicaState, replica: int) -> float:
    """Return how long the next batch waits for blocks moved to the host and back, once."""
    moved = state.pool[replica, at.MOVED]
    state.pool[replica, at.MOVED] = 0
    return 1e-9 * (moved * state.own[pool_of(state, replica), at.MOVE_NS])  # type: ignore[no-any-return]


@kernel(i8(pointer(SCHEDULE), STATE, i8, i8, f8))
def decide(schedule: Any, state: ReplicaState, replica: int, slot: int, now: float) -> int:
    """Ask the scheduler for a batch and measure it; return how many iterations that holds."""
    pool, limits = state.pool[replica], state.own[pool_of(state, replica)]
    pool[at.BATCH] = 0
    view = View(
        limits,
        pool,
        state.request,
        state.times,
        state.waiting[replica],
        state.idle[replica],
        state.batch[slot],
        state.tokens[slot],
        state.tree,
    )
    if RARE and pool[at.SWAPPED] > 0:
        swap_in(view)
        sort_by_arrival(state.request, view.idle, pool[at.IDLE])
    if RARE:
        pool[at.DRAFTS] = drafted(limits, pool)
    holds = schedule(now, view)
    pool[at.ELAPSED] = 0
    if pool[at.BATCH] == 0:
        return 0
    pool[at.MOST_USED] = max(pool[at.MOST_USED], pool[at.TOTAL] - pool[at.FREE])
    pool[at.FLIGHT] += 1
    state.sizes[slot] = pool[at.BATCH]
    state.rounds[slot, at.MADE] = 0
    checked = 1 + pool[at.DRAFTS]
    members, tokens = state.batch[slot], state.tokens[slot]
    if RARE and limits[at.CACHES] == 1:
        publish_batch(view)
    measure(state.request, members, tokens, pool[at.BATCH], checked, state.step[slot])
    if RARE and (drafts_change(limits, pool) or may_return(limits, pool, state.request)):
        return 1
    return holds  # type: ignore[no-any-return]


@kernel(f8(pointer(PRICE), STATE, i8, i8, f8, f8))
def launch(
    price: Any, state: ReplicaState, replica: int, slot: int, now: float, ready: float
) -> float:
    """Send a new batch through the stages, when it is ready; return when it ends."""
    members, size, times = state.batch[slot], state.sizes[slot], state.times
    pool, leads = state.pool[replica], state.rounds[slot, at.LEADS]
    priced, cost = state.priced[slot], state.price[slot]
    kind = pool_of(state, replica)
    price(priced, state.shape[kind], state.table[kind], cost)
    start = max(ready, state.stages[replica, 0])
    timing, gauge = state.timing[slot], state.gauge[replica]
    timing[at.STALL_S] = 0.0
    keys = priced[at.DECODE_KV]
    end = run_stages(cost, keys, state.stages[replica], timing, gauge, ready, leads)
    bubbles = timing[at.STALL_S] - (start - ready)
    for i in range(size):
        row = times[members[i]]
        if row[at.SCHEDULED] < 0.0:
            row[at.SCHEDULED] = now
        stalled = row[at.STALLED]
        if row[at.LAST_END] >= 0.0:
            stalled += start - row[at.LAST_END]
        row[at.STALLED] = stalled + bubbles
    if state.limits[at.OVERLAPS] == 1 and state.step[slot, at.PREFILLS] > 0:
        show_late(state, replica, now, end)
    timing[at.FIRST_END], timing[at.LONGEST_S], timing[at.STALL_S] = end, 0.0, 0.0
    count(pool, leads, size, int(state.step[slot, at.TOKENS]))
    if state.clock[at.LOGGED] < state.log.shape[0]:
        log_batch(state, replica, slot, now, end)
    return end


@kernel(f8(pointer(SCHEDULE), pointer(PRICE), STATE, i8, f8, boolean))
def advance(
    schedule: Any, price: Any, state: ReplicaState, replica: int, until: float, closed: bool
) -> float:
    """Let batches of a replica end before `until`; return when the next one ends.

    In a closed system the first end may release an arrival, so no further one is looked at.
    """
    pool, ends, stages = state.pool[replica], state.ends[replica], state.limits[at.STAGES]
    while pool[at.FLIGHT] > 0 and repeat_first(price, state, replica, until) > 0:
        place = state.in_flight[replica, pool[at.OLDEST]]
        now = ends[place]
        finish(state, replica, replica * stages + place, now)
        pool[at.OLDEST] = (pool[at.OLDEST] + 1) % stages
        pool[at.FLIGHT] -= 1
        form(schedule, price, state, replica, now)
        find_room(state, replica, now)
        if closed:
            break
    if pool[at.FLIGHT] == 0:
        return inf
    return ends[state.in_flight[replica, pool[at.OLDEST]]]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8))
def finish(state: ReplicaState, replica: int, slot: int, now: float) -> int:
    """End a batch: its tokens are out, what is complete leaves; return its requests."""
    pool, request, times = state.pool[replica], state.request, state.times
    idle, rounds, size = state.idle[replica], state.rounds[slot, at.MADE], state.sizes[slot]
    first_end, longest, stall = now, 0.0, 0.0
    if rounds > 0:
        timing = state.timing[slot]
        first_end, longest = timing[at.FIRST_END], timing[at.LONGEST_S]
        stall = timing[at.STALL_S]
    tick(pool, state.gauge[replica], now)
    known_gap, known_bin, counted = 0.0, gap_bin(0.0), 0
    gauge, kept = state.gauge[replica], pool[at.IDLE]
    gaps_s = gauge[at.GAPS_S]
    reads = replica < state.limits[at.READERS]
    for i in range(size):
        who = state.batch[slot, i]
        prompt = request[who, at.PROMPT]
        done = request[who, at.DONE] + state.tokens[slot, i] + rounds
        if rounds > 0:
            if done - 1 > request[who, at.BLOCKS] * state.limits[at.BLOCK]:
                request[who, at.BLOCKS] = blocks_for(done - 1, state.limits[at.BLOCK])
            times[who, at.STALLED] += stall
        times[who, at.LAST_END] = now
        if done == prompt:
            done += 1  # the prefill brings a token
        request[who, at.DONE] = done
        if done > prompt:
            if times[who, at.LAST_TOKEN] < 0.0:
                times[who, at.FIRST_TOKEN] = now
            else:
                gap = first_end - times[who, at.LAST_TOKEN]
                if gap != known_gap:
                    state.gaps[known_bin] += counted
                    known_gap, known_bin, counted = gap, gap_bin(gap), 0
                counted += 1
                gaps_s += gap
                times[who, at.LONGEST_GAP] = max(times[who, at.LONGEST_GAP], gap, longest)
            times[who, at.LAST_TOKEN] = now
        if done == prompt + request[who, at.OUTPUT]:
            times[who, at.COMPLETED] = now
            keep_sums(state, replica, who, at.SUMS)
            release(state.limits, pool, request, state.tree, who)
            release_successor(state, who, now)
        elif RARE and reads and done > prompt:
            start_kv_transfer(state, replica, who, now)
        else:
            idle[kept] = who
            kept += 1
    state.gaps[known_bin] += counted
    gauge[at.GAPS_S], pool[at.IDLE] = gaps_s, kept
    pool[at.ELAPSED] += rounds + 1
    return size  # type: ignore[no-any-return]
