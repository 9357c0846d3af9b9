"""Requests arrive, batches end: between the two nothing is decided.

A replica forms a batch only when a request arrives or a batch ends, and only while fewer batches
are in flight than it has pipeline stages. Each stage is a server that takes batches in order, so
the times of a batch at all stages are known when it is formed. An output token comes with the end
of a prefill and of every later iteration.

Events are ordered by time; at one instant arrivals come first, in the order of requests, then the
ends of batches, in the order of replicas.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from simulators.core.jit import Floats, Ints, arrays, boolean, f8, i8, matrix, pointer
from simulators.serving.engine.batch import (
    DECODE_KV,
    DECODES,
    LOGITS_ROWS,
    PAST_STEP,
    PREFILL_KV,
    PREFILL_PAIRS,
    PREFILL_PAST,
    PREFILL_SQUARES,
    PREFILL_TOKENS,
    PREFILLS,
    PRICE,
    TOKENS,
)
from simulators.serving.engine.cancellation import dismiss, release_successor
from simulators.serving.engine.kv_cache import blocks_for, may_return, release, swap_in
from simulators.serving.engine.replica import (
    ARRIVAL,
    BATCH,
    BLOCK,
    BLOCKS,
    COMPLETED,
    DONE,
    ELAPSED,
    FIRST_TOKEN,
    FLIGHT,
    FREE,
    HOLDERS,
    IDLE,
    LAST_END,
    LAST_TOKEN,
    LEAVES,
    LEFT,
    LONGEST_GAP,
    MOST_USED,
    MOVE_NS,
    MOVED,
    OLDEST,
    OUTPUT,
    PROMPT,
    RANK,
    REPLICA,
    ROUTE,
    SCHEDULE,
    SCHEDULED,
    STAGES,
    STALLED,
    SWAPPED,
    TOTAL,
    UNROUTED,
    WAITING,
    View,
    kernel,
    push_waiting,
    sort_by_arrival,
)
from simulators.serving.engine.skip_ahead import coast, prepare_to_coast, run_stages, stop_coasting
from simulators.serving.engine.state import (
    ARRIVED,
    FIRST_END,
    GAPS_S,
    LISTED,
    LOGGED,
    LONGEST_S,
    MADE,
    NEXT_LEAVE,
    QUEUED,
    RELEASED,
    REPEATS,
    RUNNING,
    STALL_S,
    TOUCHED,
    WORLD,
    World,
    count,
    gap_bin,
    log_batch,
    pop_release,
    tick,
)


@kernel(i8(pointer(SCHEDULE), pointer(ROUTE), pointer(PRICE), WORLD))
def run(schedule: Any, route: Any, price: Any, world: World) -> int:
    """Run until nothing happens any more; return how many requests neither ended nor left.

    Some are left only if the scheduler forms no batch although nothing runs, or if the price of a
    batch is not a number.
    """
    pool, ends = world.pool, world.ends
    closed = world.released.size > 0
    while True:
        arrival = next_arrival(world)
        first, second, replica = inf, inf, -1
        for r in range(pool.shape[0]):
            if pool[r, FLIGHT] > 0:
                end = ends[r, world.places[r, pool[r, OLDEST]]]
                if end < first:
                    first, second, replica = end, first, r
                elif end < second:
                    second = end
        if arrival == inf and replica < 0:
            break
        if arrival <= first:
            arrive(route, world, arrival)
            for r in range(pool.shape[0]):
                if world.load[TOUCHED, r] > 0:
                    stop_coasting(world, r)
                    form(schedule, price, world, r, arrival)
        else:
            # An end at the very instant of another replica's comes before it.
            until = min(arrival, np.nextafter(second, inf)) if closed else arrival
            advance(schedule, price, world, replica, until, closed)
    left = 0
    for who in range(world.times.shape[0]):
        if world.times[who, COMPLETED] < 0.0 and world.times[who, LEFT] < 0.0:
            left += 1
    return left


@kernel(f8(WORLD))
def next_arrival(world: World) -> float:
    """Return when the next request arrives; requests released by others are passed over."""
    clock = world.clock
    while clock[LISTED] < world.request.shape[0]:
        if world.request[clock[LISTED], REPLICA] == UNROUTED:
            break
        clock[LISTED] += 1
    listed = inf
    if clock[LISTED] < world.request.shape[0]:
        listed = world.times[clock[LISTED], ARRIVAL]
    if clock[RELEASED] > 0:
        return min(listed, world.released[0])  # type: ignore[no-any-return]
    return listed


@kernel(i8(pointer(ROUTE), WORLD, f8))
def arrive(route: Any, world: World, now: float) -> int:
    """Route all requests that arrive now, in order; return how many have arrived so far."""
    pool, load, clock = world.pool, world.load, world.clock
    for r in range(pool.shape[0]):
        load[QUEUED, r] = pool[r, WAITING] + pool[r, SWAPPED]
        load[RUNNING, r] = pool[r, HOLDERS]
        load[TOUCHED, r] = 0
    rank = clock[ARRIVED]
    while next_arrival(world) == now:
        who = clock[LISTED]
        if clock[RELEASED] > 0 and world.released[0] == now:
            who = pop_release(world)
        replica = route(clock[ARRIVED], load[QUEUED], load[RUNNING], world.draws[who])
        world.request[who, REPLICA] = replica
        world.request[who, RANK] = rank
        gauge = world.gauge[replica]
        tick(pool[replica], gauge, now)
        world.times[who, LEAVES] += now
        gauge[NEXT_LEAVE] = min(gauge[NEXT_LEAVE], world.times[who, LEAVES])
        push_waiting(pool[replica], world.waiting[replica], who)
        load[QUEUED, replica] += 1
        load[TOUCHED, replica] = 1
        clock[ARRIVED] += 1
    return clock[ARRIVED]  # type: ignore[no-any-return]


@kernel(i8(pointer(SCHEDULE), pointer(PRICE), WORLD, i8, f8))
def form(schedule: Any, price: Any, world: World, replica: int, now: float) -> int:
    """Form batches while a place in the pipeline is free; return how many are in flight.

    Requests that are left over, waiting or idle, may change what becomes of the next batch to end.
    """
    pool, stages = world.pool[replica], world.limits[STAGES]
    if pool[FLIGHT] < stages:
        tick(pool, world.gauge[replica], now)
        if now >= world.gauge[replica, NEXT_LEAVE]:
            dismiss(world, replica, now)
    while pool[FLIGHT] < stages:
        place = world.places[replica, (pool[OLDEST] + pool[FLIGHT]) % stages]
        slot = replica * stages + place
        pool[BATCH] = 0
        view = View(
            world.limits, pool, world.request, world.times, world.waiting[replica],
            world.idle[replica], world.batch[slot], world.tokens[slot],
        )  # fmt: skip
        if pool[SWAPPED] > 0:
            swap_in(view)
            sort_by_arrival(world.request, view.idle, pool[IDLE])
        holds = schedule(now, view)
        pool[ELAPSED] = 0
        if pool[BATCH] == 0:
            break
        pool[MOST_USED] = max(pool[MOST_USED], pool[TOTAL] - pool[FREE])
        pool[FLIGHT] += 1
        world.sizes[slot] = pool[BATCH]
        world.ends[replica, place] = launch(price, world, replica, slot, now)
        world.rounds[slot, MADE] = 0
        if may_return(world.limits, pool, world.request):  # at the next batch, from the host
            holds = 1
        world.rounds[slot, REPEATS] = prepare_to_coast(world, slot, holds) if holds > 1 else 0
    if stages > 1 and pool[WAITING] + pool[IDLE] + pool[SWAPPED] > 0:
        stop_coasting(world, replica)
    return pool[FLIGHT]  # type: ignore[no-any-return]


@kernel(f8(pointer(PRICE), WORLD, i8, i8, f8))
def launch(price: Any, world: World, replica: int, slot: int, now: float) -> float:
    """Send a new batch through the stages and return when it ends.

    It waits until blocks have been moved to the host and back.
    """
    members, size, times = world.batch[slot], world.sizes[slot], world.times
    pool = world.pool[replica]
    ready = now + 1e-9 * (pool[MOVED] * world.limits[MOVE_NS])
    pool[MOVED] = 0
    measure(world.request, members, world.tokens[slot], size, world.step[slot])
    price(world.step[slot], world.shape, world.table, world.price[slot])
    start = max(ready, world.stages[replica, 0])
    paces = world.paces[slot]
    paces[STALL_S] = 0.0
    step, priced = world.step[slot], world.price[slot]
    end = run_stages(
        priced, step[DECODE_KV], world.stages[replica], paces, world.gauge[replica], ready
    )
    bubbles = paces[STALL_S] - (start - ready)
    for i in range(size):
        who = members[i]
        if times[who, SCHEDULED] < 0.0:
            times[who, SCHEDULED] = now
        if times[who, LAST_END] >= 0.0:
            times[who, STALLED] += start - times[who, LAST_END]
        times[who, STALLED] += bubbles
    paces[FIRST_END], paces[LONGEST_S], paces[STALL_S] = end, 0.0, 0.0
    count(pool, size, int(step[TOKENS]))
    if world.clock[LOGGED] < world.log.shape[0]:
        log_batch(world, replica, slot, now, end)
    return end


@kernel(f8(matrix(i8), *arrays(i8, 2), i8, *arrays(f8, 1)))
def measure(request: Ints, batch: Ints, tokens: Ints, size: int, step: Floats) -> float:
    """Write the sums of a batch and return its tokens."""
    step[:] = 0.0
    for i in range(size):
        who, granted = batch[i], tokens[i]
        done, prompt = request[who, DONE], request[who, PROMPT]
        if done > prompt:
            step[DECODES] += 1.0
            step[DECODE_KV] += done
            step[LOGITS_ROWS] += 1.0
            continue
        step[PREFILLS] += 1.0
        step[PREFILL_TOKENS] += granted
        step[PREFILL_PAIRS] += granted * done + granted * (granted + 1) // 2
        step[PREFILL_KV] += done + granted
        step[PREFILL_SQUARES] += granted * granted
        step[PREFILL_PAST] += (done + PAST_STEP - 1) // PAST_STEP * PAST_STEP
        if done + granted == prompt:
            step[LOGITS_ROWS] += 1.0
    step[TOKENS] = step[PREFILL_TOKENS] + step[DECODES]
    return step[TOKENS]  # type: ignore[no-any-return]


@kernel(f8(pointer(SCHEDULE), pointer(PRICE), WORLD, i8, f8, boolean))
def advance(
    schedule: Any, price: Any, world: World, replica: int, until: float, closed: bool
) -> float:
    """Let batches of a replica end before `until`; return when the next one ends.

    In a closed system the first end may release an arrival, so no further one is looked at.
    """
    pool, ends, stages = world.pool[replica], world.ends[replica], world.limits[STAGES]
    while pool[FLIGHT] > 0 and coast(price, world, replica, until) > 0:
        place = world.places[replica, pool[OLDEST]]
        now = ends[place]
        finish(world, replica, replica * stages + place, now)
        pool[OLDEST] = (pool[OLDEST] + 1) % stages
        pool[FLIGHT] -= 1
        form(schedule, price, world, replica, now)
        if closed:
            break
    if pool[FLIGHT] == 0:
        return inf
    return ends[world.places[replica, pool[OLDEST]]]  # type: ignore[no-any-return]


@kernel(i8(WORLD, i8, i8, f8))
def finish(world: World, replica: int, slot: int, now: float) -> int:
    """End a batch: its tokens are out, what is complete leaves; return its requests."""
    pool, request, times = world.pool[replica], world.request, world.times
    idle, rounds, size = world.idle[replica], world.rounds[slot, MADE], world.sizes[slot]
    first_end, longest, stall = now, 0.0, 0.0
    if rounds > 0:
        paces = world.paces[slot]
        first_end, longest, stall = paces[FIRST_END], paces[LONGEST_S], paces[STALL_S]
    tick(pool, world.gauge[replica], now)
    known_gap, known_bin = 0.0, gap_bin(0.0)
    for i in range(size):
        who = world.batch[slot, i]
        prompt = request[who, PROMPT]
        done = request[who, DONE] + world.tokens[slot, i] + rounds
        if rounds > 0:
            grown = blocks_for(done - 1, world.limits[BLOCK])
            request[who, BLOCKS] = max(request[who, BLOCKS], grown)
            times[who, STALLED] += stall
        times[who, LAST_END] = now
        if done == prompt:
            done += 1  # the prefill brings a token
        request[who, DONE] = done
        if done > prompt:
            if times[who, LAST_TOKEN] < 0.0:
                times[who, FIRST_TOKEN] = now
            else:
                gap = first_end - times[who, LAST_TOKEN]
                if gap != known_gap:
                    known_gap, known_bin = gap, gap_bin(gap)
                world.gaps[known_bin] += 1
                world.gauge[replica, GAPS_S] += gap
                times[who, LONGEST_GAP] = max(times[who, LONGEST_GAP], gap, longest)
            times[who, LAST_TOKEN] = now
        if done == prompt + request[who, OUTPUT]:
            times[who, COMPLETED] = now
            release(pool, request, who)
            release_successor(world, who, now)
        else:
            idle[pool[IDLE]] = who
            pool[IDLE] += 1
    pool[ELAPSED] += rounds + 1
    return size  # type: ignore[no-any-return]
