"""The event loop: requests arrive, batches end, and replicas schedule the next batches.

A replica calls its scheduler when a request arrives or a batch ends, while fewer batches are in
flight than it has pipeline stages. Each stage processes batches in order, so all times of a batch
are known when it is formed. The end of a prefill and of every decode emits an output token.

Events are ordered by time. At one instant arrivals come first, in the order of requests, then the
ends of batches, in the order of replicas. With separate prefill and decode pools, a request is
also an arrival when its prefill ends and when its KV transfer ends.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from simulators.core.jit import boolean, f8, i8, pointer
from simulators.serving.engine import replica as at
from simulators.serving.engine.arrivals import (
    open_gate,
    pass_frontend,
    pop_release,
    push_release,
    release_next,
    release_successor,
)
from simulators.serving.engine.batches import (
    combine_ranks,
    drafted,
    drafts_change,
    expect_tokens,
    is_same_batch,
    possible_repeats,
    receive_tokens,
    repeat_ahead,
    repeat_first,
    run_stages,
    stop_repeating,
    sum_batch,
)
from simulators.serving.engine.kv_cache import (
    blocks_for,
    cache_batch_blocks,
    cache_blocks,
    cached_tokens,
    can_swap_in,
    release,
    renew_view,
    seen_tokens,
    swap_in,
)
from simulators.serving.engine.kv_transfer import (
    advance_kv_transfer,
    send_waiting,
    start_kv_transfer,
)
from simulators.serving.engine.lookahead import (
    mark_holder,
    may_hold,
    renew_finishes,
)
from simulators.serving.engine.replica import (
    OPTIONAL_FEATURES,
    PRICE,
    ROUTE,
    SCHEDULE,
    STATE,
    ReplicaState,
    View,
    count_batch,
    has_ranks,
    kernel,
    log_batch,
    pool_of,
    push_waiting,
    ranks_with,
    remove_waiting,
    snapshot_sums,
    sort_by_arrival,
    update_integrals,
)
from simulators.serving.engine.token_gaps import gap_bin


@kernel(i8(pointer(SCHEDULE), pointer(ROUTE), pointer(PRICE), STATE))
def run(schedule: Any, route: Any, price: Any, state: ReplicaState) -> int:
    """Process all events; return the number of unfinished requests.

    Requests stay unfinished only if the scheduler forms no batch although nothing runs, or if the
    price of a batch is not a number.
    """
    pool, ends = state.pool, state.ends
    closed, postpones = state.released.size > 0, state.finishes.size > 0
    while True:
        arrival = next_arrival(state)
        first, second, replica = inf, inf, -1
        if postpones:
            for r in range(state.finishes.size):
                end = state.finishes[r]
                if end < second:
                    if end < first:
                        first, second, replica = end, first, r
                    else:
                        second = end
        else:
            for r in range(pool.shape[0]):
                if pool[r, at.IN_FLIGHT] > 0:
                    end = ends[r, state.in_flight[r, pool[r, at.OLDEST]]]
                    if end < first:
                        first, second, replica = end, first, r
                    elif end < second:
                        second = end
        if arrival == inf and first == inf:
            break
        if arrival <= first:
            route_arrivals(route, price, state, arrival)
            is_async = state.limits[at.ASYNC_SCHEDULING] == 1
            for r in range(pool.shape[0]):
                if state.load[at.LOAD_CHANGED, r] > 0:
                    stop_repeating(state, r)
                    if is_async and pool[r, at.IN_FLIGHT] > 0:
                        continue  # the engine waits for the end of a batch
                    form_batches(schedule, price, state, r, arrival)
                    start_waiting_transfers(state, r, arrival)
                    if postpones:
                        renew_finishes(state, r)
        else:
            # Ends at the same instant are processed in the order of replicas.
            until = min(arrival, np.nextafter(second, inf)) if closed else arrival
            advance(schedule, price, state, replica, until, closed)
            if postpones:
                renew_finishes(state, replica)
    unfinished = 0
    has_graph = state.graph.shape[0] > 0
    for req in range(state.times.shape[0]):
        is_sent = not has_graph or state.times[req, at.SERVICE] < 0.0
        if state.times[req, at.COMPLETED] < 0.0 and is_sent:
            unfinished += 1
    return unfinished


@kernel(i8(pointer(PRICE), STATE, i8, i8, f8))
def catch_up(price: Any, state: ReplicaState, first: int, end: int, now: float) -> int:
    """Repeat the batches of some replicas up to a time; return how many were in flight."""
    count = 0
    for replica in range(first, end):
        if state.pool[replica, at.IN_FLIGHT] > 0 and state.ends[replica, 0] < now:
            repeat_first(price, state, replica, now)
            count += 1
    return count


@kernel(f8(STATE))
def next_arrival(state: ReplicaState) -> float:
    """Return the time of the next arrival, listed or released by another request."""
    clock = state.clock
    while clock[at.NEXT_LISTED] < state.request.shape[0]:
        if state.request[clock[at.NEXT_LISTED], at.REPLICA] == at.UNROUTED:
            break
        clock[at.NEXT_LISTED] += 1
    listed = inf
    if clock[at.NEXT_LISTED] < state.request.shape[0]:
        listed = state.times[clock[at.NEXT_LISTED], at.ARRIVAL]
    if clock[at.HEAP_SIZE] > 0:
        return min(listed, state.released[0])  # type: ignore[no-any-return]
    return listed


@kernel(i8(pointer(ROUTE), pointer(PRICE), STATE, f8))
def route_arrivals(route: Any, price: Any, state: ReplicaState, now: float) -> int:
    """Route all requests that arrive now, in order; return the number of arrivals so far."""
    pool, load, clock = state.pool, state.load, state.clock
    for r in range(pool.shape[0]):
        load[at.LOAD_CHANGED, r] = 0
    rank, knows_load = clock[at.ARRIVED], False
    while next_arrival(state) == now:
        req = clock[at.NEXT_LISTED]
        if clock[at.HEAP_SIZE] > 0 and state.released[0] == now:
            req = pop_release(state)
            if req == at.NEXT_UNRELEASED:
                release_next(state, now)
                continue
            if OPTIONAL_FEATURES and req >= state.request.shape[0]:
                open_gate(state, req, now)
                continue
            is_new = state.request[req, at.REPLICA] < 0 and state.times[req, at.SERVICE] >= 0.0
            if OPTIONAL_FEATURES and is_new and now > state.sending[at.SENDING_END_S]:
                continue  # never sent
        if not knows_load and state.times[req, at.SERVICE] < 0.0:
            knows_load = True
            for r in range(pool.shape[0]):
                load[at.LOAD_WAITING, r] = (
                    pool[r, at.WAITING] + pool[r, at.NUM_SWAPPED] + pool[r, at.WAITING_KV]
                )
                load[at.LOAD_RUNNING, r] = pool[r, at.NUM_RUNNING]
        if OPTIONAL_FEATURES and state.request[req, at.REPLICA] >= 0:
            if state.limits[at.LOADS_REQUEST] == 1 and state.request[req, at.REQUEST_LOADED_NS] > 0:
                finish_load(state, req, now)
            else:
                advance_kv_transfer(route, state, req, now)
            continue
        if state.times[req, at.SERVICE] >= 0.0:
            pass_frontend(state, req)
            continue
        if OPTIONAL_FEATURES and state.limits[at.PREFIX_CACHING] == 1:
            lookup_prefixes(price, state, req, now)
        routable = state.request[req, at.ROUTABLE]
        queued, running, found = load[at.LOAD_WAITING], load[at.LOAD_RUNNING], load[at.LOAD_CACHED]
        replica = route(
            clock[at.ARRIVED],
            queued[:routable],
            running[:routable],
            found[:routable],
            state.draws[req],
        )
        state.request[req, at.REPLICA] = replica
        state.request[req, at.ARRIVAL_ORDER] = rank
        mark_holder(state, req, replica)
        if state.finishes.size > 0:
            begin, ranks = ranks_with(state, replica)
            catch_up(price, state, begin, begin + ranks, now)
        update_integrals(pool[replica], state.gauge[replica], now)
        push_waiting(pool[replica], state.waiting[replica], req)
        load[at.LOAD_WAITING, replica] += 1
        load[at.LOAD_CHANGED, replica] = 1
        clock[at.ARRIVED] += 1
    return clock[at.ARRIVED]  # type: ignore[no-any-return]


@kernel(i8(pointer(PRICE), STATE, i8, f8))
def lookup_prefixes(price: Any, state: ReplicaState, req: int, now: float) -> int:
    """Write the cached thousandths of a prompt on each replica; return the replicas looked at.

    A router's view of the caches may be renewed only now and then: at the first arrival at which it
    has reached its age.
    """
    found, request, clock = state.load[at.LOAD_CACHED], state.request, state.clock
    num_replicas = state.limits[at.PREFILL_REPLICAS] or found.size
    age_ns, now_ns = state.limits[at.VIEW_REFRESH_NS], int(now * 1e9) + 1
    renews = age_ns > 0 and (clock[at.VIEWED_NS] == 0 or now_ns - clock[at.VIEWED_NS] >= age_ns)
    if renews:
        clock[at.VIEWED_NS] = now_ns
    for r in range(num_replicas):
        found[r] = 0
        if not may_hold(state, req, r):
            continue
        if state.finishes.size > 0:
            catch_up(price, state, r, r + 1, now)
        if renews:
            renew_view(state.limits, state.pool[r], state.tree)
        if age_ns > 0:
            cached = seen_tokens(state.limits, state.pool[r], request, state.tree, req)
        else:
            cached = cached_tokens(state.limits, state.pool[r], request, state.tree, req)
        found[r] = 1000 * cached // request[req, at.PROMPT]
    return num_replicas  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def finish_load(state: ReplicaState, req: int, now: float) -> int:
    """Continue a request whose blocks are loaded as a partial prefill; return its replica."""
    request, replica = state.request, state.request[req, at.REPLICA]
    pool = state.pool[replica]
    update_integrals(pool, state.gauge[replica], now)
    request[req, at.REQUEST_LOADED_NS] = 0
    cache_blocks(state.limits, pool, request, state.tree, req, request[req, at.NUM_COMPUTED])
    state.running[replica, pool[at.RUNNING]] = req
    pool[at.RUNNING] += 1
    state.load[at.LOAD_CHANGED, replica] = 1
    return replica  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def start_loads(state: ReplicaState, replica: int) -> int:
    """Schedule the ends of the loads of requests just admitted; return their number."""
    pool, loads = state.pool[replica], state.pool[replica, at.NUM_LOADING]
    for _ in range(loads):
        req = pool[at.LAST_LOADING]
        push_release(state, 1e-9 * state.request[req, at.REQUEST_LOADED_NS], req)
        pool[at.LAST_LOADING] = state.request[req, at.SWAPPED_BEFORE]
    pool[at.NUM_LOADING] = 0
    return loads  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, f8))
def start_waiting_transfers(state: ReplicaState, replica: int, now: float) -> int:
    """Start the KV transfers to a replica's ranks that have free blocks; return how many."""
    (first, ranks), sent = ranks_with(state, replica), 0
    for rank in range(first, first + ranks):
        if OPTIONAL_FEATURES and state.pool[rank, at.WAITING_KV] > 0:
            sent += send_waiting(state, rank, now)
    return sent


@kernel(i8(pointer(SCHEDULE), pointer(PRICE), STATE, i8, f8))
def form_batches(schedule: Any, price: Any, state: ReplicaState, replica: int, now: float) -> int:
    """Form batches while a pipeline stage is free; return the number of batches in flight.

    With several stages, remaining requests may join the next batch that ends: no batch is repeated.
    With asynchronous scheduling a batch is formed when the one before it starts, which is repeated
    in place of both if they are equal.
    """
    if OPTIONAL_FEATURES and has_ranks(state):
        return form_rank_batches(schedule, price, state, replica, now)
    pool, stages = state.pool[replica], state.limits[at.STAGES]
    most = state.limits[at.MAX_CONCURRENT_BATCHES]
    is_async = state.limits[at.ASYNC_SCHEDULING] == 1
    if pool[at.IN_FLIGHT] < most:
        update_integrals(pool, state.gauge[replica], now)
    while pool[at.IN_FLIGHT] < most:
        back = pool[at.OLDEST] + pool[at.IN_FLIGHT]
        place = state.in_flight[replica, back if back < most else back - most]
        slot, rounds = replica * most + place, state.rounds[replica * most + place]
        rounds[at.REPEATS], is_ahead = 0, is_async and pool[at.IN_FLIGHT] == 1
        if not (is_ahead and repeat_ahead(state, replica, slot)):
            holds = schedule_batch(schedule, state, replica, slot, now)
            if pool[at.BATCH_SIZE] == 0:
                break
            if holds > 1:
                rounds[at.REPEATS] = holds - 1
                if not (is_async and pool[at.NUM_DRAFTS] > 0):
                    rounds[at.REPEATS] = possible_repeats(state, slot, holds)
            if is_async:
                expect_tokens(state, replica, slot)
            older = replica * most + state.in_flight[replica, pool[at.OLDEST]]
            if is_ahead and rounds[at.REPEATS] > 0 and is_same_batch(state, older, slot):
                state.rounds[older, at.REPEATS], rounds[at.REPEATS] = rounds[at.REPEATS], 0
        rounds[at.KEYS_PER_REPEAT], rounds[at.COUNTS_ITERATION] = state.sizes[slot], 1
        ready = now + transfer_s(state, replica, now)
        state.ends[replica, place] = launch(price, state, replica, slot, now, ready)
    if stages > 1 and pool[at.WAITING] + pool[at.RUNNING] + pool[at.NUM_SWAPPED] > 0:
        stop_repeating(state, replica)
    return pool[at.IN_FLIGHT]  # type: ignore[no-any-return]


@kernel(i8(pointer(SCHEDULE), pointer(PRICE), STATE, i8, f8))
def form_rank_batches(
    schedule: Any, price: Any, state: ReplicaState, replica: int, now: float
) -> int:
    """Form the batches of all ranks of a replica if all are idle; return the number of batches.

    Expert layers exchange tokens between all ranks, so iterations are synchronous: every rank waits
    for the busiest one and for the last block transfer.
    """
    formed, moved_s = 0, 0.0
    first, ranks = ranks_with(state, replica)
    for rank in range(first, first + ranks):
        if state.pool[rank, at.IN_FLIGHT] > 0:
            return 0
    repeats = at.UNTIL_CHANGED
    for rank in range(first, first + ranks):
        update_integrals(state.pool[rank], state.gauge[rank], now)
        holds = schedule_batch(schedule, state, rank, rank, now)
        if state.pool[rank, at.BATCH_SIZE] == 0:
            state.sizes[rank] = 0
            continue
        formed += 1
        moved_s = max(moved_s, transfer_s(state, rank, now))
        mine = possible_repeats(state, rank, holds) if holds > 1 else 0
        rounds_of_blocks = max(0, state.pool[rank, at.FREE_BLOCKS] - 1) // state.sizes[rank]
        repeats = min(repeats, mine, rounds_of_blocks * state.limits[at.BLOCK])
    if formed == 0:
        return 0
    growth = combine_ranks(state, first)
    counts_iteration = 1
    for rank in range(first, first + ranks):
        if state.sizes[rank] > 0:
            rounds = state.rounds[rank]
            rounds[at.KEYS_PER_REPEAT], rounds[at.REPEATS] = growth, repeats
            rounds[at.COUNTS_ITERATION] = counts_iteration
            state.ends[rank, 0] = launch(price, state, rank, rank, now, now + moved_s)
            counts_iteration = 0
    return formed


@kernel(f8(STATE, i8, f8))
def transfer_s(state: ReplicaState, replica: int, now: float) -> float:
    """Return the time of pending block transfers to the host and from tiers, and clear them."""
    moved = state.pool[replica, at.BLOCKS_TO_MOVE]
    state.pool[replica, at.BLOCKS_TO_MOVE] = 0
    pending_s = 1e-9 * (moved * state.own[pool_of(state, replica), at.MOVE_NS])
    if OPTIONAL_FEATURES and state.pool[replica, at.LOADED_NS] > 0:
        pending_s = max(pending_s, 1e-9 * state.pool[replica, at.LOADED_NS] - now)
        state.pool[replica, at.LOADED_NS] = 0
    return pending_s  # type: ignore[no-any-return]


@kernel(i8(pointer(SCHEDULE), STATE, i8, i8, f8))
def schedule_batch(schedule: Any, state: ReplicaState, replica: int, slot: int, now: float) -> int:
    """Call the scheduler for a batch and sum it up; return for how many iterations it holds."""
    pool, limits = state.pool[replica], state.own[pool_of(state, replica)]
    pool[at.BATCH_SIZE] = 0
    view = View(
        limits,
        pool,
        state.request,
        state.times,
        state.waiting[replica],
        state.running[replica],
        state.batch[slot],
        state.tokens[slot],
        state.tree,
        state.gauge[replica],
    )
    if OPTIONAL_FEATURES and pool[at.NUM_SWAPPED] > 0:
        swap_in(view)
        sort_by_arrival(state.request, view.running, pool[at.RUNNING])
    if OPTIONAL_FEATURES:
        pool[at.NUM_DRAFTS] = drafted(limits, pool)
    holds = schedule(now, view)
    if OPTIONAL_FEATURES and pool[at.NUM_LOADING] > 0:
        start_loads(state, replica)
    pool[at.ELAPSED] = pool[at.REPEATED_ITERATIONS] = 0
    if pool[at.BATCH_SIZE] == 0:
        return 0
    pool[at.MAX_USED_BLOCKS] = max(
        pool[at.MAX_USED_BLOCKS], pool[at.TOTAL_BLOCKS] - pool[at.FREE_BLOCKS]
    )
    pool[at.IN_FLIGHT] += 1
    state.sizes[slot] = pool[at.BATCH_SIZE]
    state.rounds[slot, at.REPEATED], state.price[slot, at.UNTIL_KV] = 0, 0.0
    checked = 1 + pool[at.NUM_DRAFTS]
    members, tokens = state.batch[slot], state.tokens[slot]
    if OPTIONAL_FEATURES and limits[at.PREFIX_CACHING] > limits[at.CACHES_AT_END]:
        cache_batch_blocks(view)
    sum_batch(state.request, members, tokens, pool[at.BATCH_SIZE], checked, state.step[slot])
    if OPTIONAL_FEATURES and (
        drafts_change(limits, pool) or can_swap_in(limits, pool, state.request)
    ):
        return 1
    return holds  # type: ignore[no-any-return]


@kernel(f8(pointer(PRICE), STATE, i8, i8, f8, f8))
def launch(
    price: Any, state: ReplicaState, replica: int, slot: int, now: float, ready: float
) -> float:
    """Send a new batch through the pipeline stages; return its end."""
    members, size, times = state.batch[slot], state.sizes[slot], state.times
    pool, counts_iteration = state.pool[replica], state.rounds[slot, at.COUNTS_ITERATION]
    priced, cost = state.priced[slot], state.price[slot]
    kind = pool_of(state, replica)
    keys = priced[at.DECODE_KV]
    if keys >= cost[at.UNTIL_KV]:
        price(priced, state.shape[kind], state.table[kind], cost)
    start = max(ready, state.stages[replica, 0])
    timing, gauge = state.timing[slot], state.gauge[replica]
    timing[at.STALL_S] = 0.0
    end = run_stages(cost, keys, state.stages[replica], timing, gauge, ready, counts_iteration)
    bubbles = timing[at.STALL_S] - (start - ready)
    is_async = state.limits[at.ASYNC_SCHEDULING] == 1
    for i in range(size):
        row = times[members[i]]
        if row[at.SCHEDULED] < 0.0:
            row[at.SCHEDULED] = now
        stalled = row[at.STALLED]
        if row[at.LAST_END] >= 0.0:
            stalled += start - row[at.LAST_END]
        row[at.STALLED] = stalled + bubbles
        if is_async:
            row[at.LAST_END] = end
    if state.limits[at.OVERLAP_SCHEDULE] == 1 and state.step[slot, at.PREFILLS] > 0:
        delay_first_tokens(state, replica, now, end)
    timing[at.FIRST_END], timing[at.LONGEST_S], timing[at.STALL_S] = end, 0.0, 0.0
    gauge[at.FILLED_S] += now * state.step[slot, at.PREFILL_TOKENS]
    count_batch(pool, counts_iteration, size, int(state.step[slot, at.TOKENS]))
    if state.clock[at.LOG_ROWS] < state.log.shape[0]:
        log_batch(state, replica, slot, now, end)
    return end


@kernel(i8(STATE, i8, f8, f8))
def delay_first_tokens(state: ReplicaState, replica: int, now: float, end: float) -> int:
    """Delay the first tokens of the batch that ended now to the end of the next prefill batch.

    With overlapped scheduling (SGLang, `event_loop_overlap`) the host launches a batch before it
    reads the tokens of the last one. Decodes replay a graph, which is launched at once. A prefill
    batch has no graph: first tokens of the batch before were measured to arrive at its end.
    Returns the number of running requests.
    """
    times, running = state.times, state.running[replica]
    waiting = state.pool[replica, at.RUNNING]
    for i in range(waiting):
        row = times[running[i]]
        if row[at.LAST_END] == now and row[at.FIRST_TOKEN] == now:
            row[at.FIRST_TOKEN] = row[at.LAST_TOKEN] = end
    return waiting  # type: ignore[no-any-return]


@kernel(f8(pointer(SCHEDULE), pointer(PRICE), STATE, i8, f8, boolean))
def advance(
    schedule: Any, price: Any, state: ReplicaState, replica: int, until: float, closed: bool
) -> float:
    """Process the batches of a replica that end before `until`; return the end of the next one.

    In a closed loop an end may release an arrival, so one end is processed at a time.
    """
    pool, ends = state.pool[replica], state.ends[replica]
    most = state.limits[at.MAX_CONCURRENT_BATCHES]
    while pool[at.IN_FLIGHT] > 0 and repeat_first(price, state, replica, until) > 0:
        place = state.in_flight[replica, pool[at.OLDEST]]
        now = ends[place]
        finish(state, replica, replica * most + place, now)
        pool[at.OLDEST] = pool[at.OLDEST] + 1 if pool[at.OLDEST] + 1 < most else 0
        pool[at.IN_FLIGHT] -= 1
        form_batches(schedule, price, state, replica, now)
        start_waiting_transfers(state, replica, now)
        if closed:
            break
    if pool[at.IN_FLIGHT] == 0:
        return inf
    return ends[state.in_flight[replica, pool[at.OLDEST]]]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8, f8))
def finish(state: ReplicaState, replica: int, slot: int, now: float) -> int:
    """End a batch: emit its tokens and free completed requests; return the batch size."""
    pool, request, times = state.pool[replica], state.request, state.times
    running, size = state.running[replica], state.sizes[slot]
    rounds = state.rounds[slot, at.REPEATED]
    first_end, longest, stall = now, 0.0, 0.0
    if rounds > 0:
        timing = state.timing[slot]
        first_end, longest = timing[at.FIRST_END], timing[at.LONGEST_S]
        stall = timing[at.STALL_S]
    update_integrals(pool, state.gauge[replica], now)
    known_gap, known_bin, counted = 0.0, gap_bin(0.0), 0
    gauge, kept, ended = state.gauge[replica], pool[at.RUNNING], 0
    is_async = state.limits[at.ASYNC_SCHEDULING] == 1
    ahead_s = state.stages[replica, 0] - now if is_async else 0.0
    gaps_s, filled = gauge[at.GAPS_S], 0
    is_prefill_replica = replica < state.limits[at.PREFILL_REPLICAS]
    limits = state.own[pool_of(state, replica)]
    for i in range(size):
        req = state.batch[slot, i]
        scheduled = 0 if is_async else state.tokens[slot, i]
        num_computed = request[req, at.NUM_COMPUTED] + scheduled + rounds
        if rounds > 0:
            if num_computed - 1 > request[req, at.BLOCKS] * state.limits[at.BLOCK]:
                request[req, at.BLOCKS] = blocks_for(num_computed - 1, state.limits[at.BLOCK])
            times[req, at.STALLED] += stall
        if is_async:
            if rounds > 0:
                request[req, at.NUM_COMPUTED] = num_computed
                times[req, at.LAST_END] = state.stages[replica, 0]
            known = request[req, at.NUM_COMPUTED] - request[req, at.NUM_OUTPUT_PLACEHOLDERS]
            num_computed = receive_tokens(state, slot, i)
            if num_computed == 0:
                continue
            filled += num_computed - max(known, request[req, at.PROMPT] + 1)
        else:
            times[req, at.LAST_END] = now
            filled += request[req, at.NUM_COMPUTED] > request[req, at.PROMPT]
            if num_computed == request[req, at.PROMPT]:
                num_computed += 1  # the prefill brings a token
            request[req, at.NUM_COMPUTED] = num_computed
        prompt = request[req, at.PROMPT]
        if OPTIONAL_FEATURES and state.limits[at.CACHES_AT_END] == 1 and num_computed <= prompt + 1:
            tokens = min(num_computed, prompt)
            cache_blocks(limits, pool, request, state.tree, req, tokens)
        if num_computed > prompt or is_async:
            if times[req, at.LAST_TOKEN] < 0.0:
                times[req, at.FIRST_TOKEN] = now
                lag_ns = state.limits[at.STREAM_NS] * pool[at.NUM_RUNNING]
                times[req, at.LAG_S] = 1e-9 * lag_ns
            else:
                gap = first_end - times[req, at.LAST_TOKEN]
                if gap != known_gap:
                    state.gaps[known_bin] += counted
                    known_gap, known_bin, counted = gap, gap_bin(gap), 0
                counted += 1
                gaps_s += gap
                times[req, at.LONGEST_GAP] = max(times[req, at.LONGEST_GAP], gap, longest)
            times[req, at.LAST_TOKEN] = now
        if num_computed == prompt + request[req, at.OUTPUT]:
            times[req, at.COMPLETED] = now
            snapshot_sums(state, replica, req, at.SUMS, ahead_s)
            if is_async and request[req, at.BLOCKS] == 0:  # preempted while its batch ran
                remove_waiting(pool, state.waiting[replica], req)
            else:
                release(limits, pool, request, state.tree, req)
            request[req, at.NUM_COMPUTED] = num_computed
            ended += 1
            release_successor(state, req, now)
        elif OPTIONAL_FEATURES and is_prefill_replica and num_computed > prompt:
            start_kv_transfer(state, replica, req, now)
        elif not is_async:
            running[kept] = req
            kept += 1
    if is_async and ended > 0:
        kept = 0
        for i in range(pool[at.RUNNING]):
            running[kept] = running[i]
            kept += request[running[i], at.BLOCKS] > 0
        if pool[at.WAITING] > 0:
            stop_repeating(state, replica)
    state.gaps[known_bin] += counted
    gauge[at.GAPS_S], pool[at.RUNNING] = gaps_s, kept
    gauge[at.FILLED_S] += now * filled
    pool[at.ELAPSED] += rounds + 1
    return size  # type: ignore[no-any-return]
