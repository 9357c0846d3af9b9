"""Repeats a batch of decodes without calling the scheduler, while only context lengths grow.

A repeat is priced, allocates blocks and ends like any other iteration, but does not visit every
request, except to draw its accepted draft tokens. Times of requests are bit-identical to those of
calling the scheduler in every iteration (a test compares both).
"""

from __future__ import annotations

from typing import Any

from simulators.core.jit import Floats, arrays, f8, i8, pointer, several
from simulators.serving.engine import replica as at
from simulators.serving.engine.drafts import draw
from simulators.serving.engine.replica import OPTIONAL_FEATURES, PRICE, kernel
from simulators.serving.engine.state import (
    STATE,
    ReplicaState,
    count_batch,
    gap_bin,
    gap_edge,
    log_batch,
    pool_of,
)


@kernel(i8(STATE, i8, i8))
def possible_repeats(state: ReplicaState, slot: int, holds: int) -> int:
    """Return how often a batch of decodes can be repeated before a request ends.

    `crossings` counts the requests that need a block by iteration modulo the block size, so that a
    repeat knows its new blocks without visiting the requests.
    """
    request, block = state.request, state.limits[at.BLOCK]
    crossings = state.crossings[slot]
    crossings[:] = 0
    repeats = holds - 1
    for i in range(state.sizes[slot]):
        req = state.batch[slot, i]
        num_computed = request[req, at.NUM_COMPUTED]
        if num_computed <= request[req, at.PROMPT]:
            return 0
        repeats = min(repeats, request[req, at.PROMPT] + request[req, at.OUTPUT] - num_computed - 1)
        crossing = request[req, at.BLOCKS] * block - num_computed + 1
        if crossing > block:
            repeats = min(repeats, crossing - 1)
        elif crossing == block:
            crossings[0] += 1
        else:
            crossings[crossing] += 1
    return repeats


@kernel(i8(STATE, i8))
def stop_repeating(state: ReplicaState, replica: int) -> int:
    """Call the scheduler again at the end of every batch in flight, on all ranks of a replica.

    Returns the number of pipeline stages.
    """
    stages = state.limits[at.STAGES]
    ranks = state.limits[at.RANKS]
    first = replica - replica % ranks
    for slot in range(first * stages, (first + ranks) * stages):
        state.rounds[slot, at.REPEATS] = 0
    return stages  # type: ignore[no-any-return]


@kernel(i8(pointer(PRICE), STATE, i8, f8))
def repeat_first(price: Any, state: ReplicaState, replica: int, until: float) -> int:
    """Repeat the batch that ends first while its end is before `until` and repeats are left.

    Returns 1 if the batch that ends first cannot be repeated again: its repeats are used up, or
    no block is free. Most iterations happen here, so the sums of a replica are local variables.
    """
    pool, gauge, block = state.pool[replica], state.gauge[replica], state.limits[at.BLOCK]
    ends, stages, ring = state.ends[replica], state.stages[replica], state.in_flight[replica]
    inside = pool[at.WAITING] + pool[at.WAITING_KV] + pool[at.NUM_RUNNING] + pool[at.NUM_SWAPPED]
    free, oldest, last = pool[at.FREE_BLOCKS], pool[at.OLDEST], stages.size - 1
    total, alone = pool[at.TOTAL_BLOCKS], pool[at.IN_FLIGHT] == 1
    drafts = state.own[pool_of(state, replica), at.NUM_DRAFT_TOKENS] > 0
    clock_s = gauge[at.CLOCK_S]
    block_seconds, inside_seconds = gauge[at.BLOCK_SECONDS], gauge[at.REQUEST_SECONDS]
    busy_s, joules = gauge[at.BUSY_S], gauge[at.JOULES]
    gaps_s, batched, iterations, must_end = gauge[at.GAPS_S], 0, 0, 0
    place = ring[oldest]
    now = ends[place]
    while now < until and must_end == 0:
        slot = replica * stages.size + place
        rounds, timing, crossings = state.rounds[slot], state.timing[slot], state.crossings[slot]
        step, priced, size = state.priced[slot], state.price[slot], state.sizes[slot]
        keys, growth, counts_iteration = (
            step[at.DECODE_KV],
            rounds[at.KEYS_PER_REPEAT],
            rounds[at.COUNTS_ITERATION],
        )
        made, most, stall_s = 0, rounds[at.REPEATS], timing[at.STALL_S]
        phase, counted, longest_s = rounds[at.REPEATED] % block, 0, timing[at.LONGEST_S]
        low_s, high_s = timing[at.BIN_LOW_S], timing[at.BIN_HIGH_S]
        while now < until:
            phase = phase + 1 if phase + 1 < block else 0
            new_blocks = crossings[phase]
            if OPTIONAL_FEATURES and drafts:
                new_blocks, growth = draw(state, replica, slot, rounds[at.REPEATED] + made)
            if made == most or free - new_blocks < 1:
                must_end = 1
                break
            made += 1
            block_seconds += (total - free) * (now - clock_s)
            inside_seconds += inside * (now - clock_s)
            clock_s = now
            free -= new_blocks
            keys += growth
            if keys >= priced[at.UNTIL_KV]:
                step[at.DECODE_KV] = keys
                kind = pool_of(state, replica)
                price(step, state.shape[kind], state.table[kind], priced)
            end, worked, waited = pass_stages(priced, keys, stages, now)
            stall_s += waited
            if counts_iteration:
                busy_s += worked
                joules += drawn_j(priced, keys, stages.size)
            gap = end - now
            if not low_s <= gap < high_s:
                state.gaps[int(timing[at.BIN])] += counted
                timing[at.BIN] = place_of = gap_bin(gap)
                low_s, high_s = gap_edge(place_of), gap_edge(place_of + 1)
                counted = 0
            counted += size
            gaps_s += size * gap
            longest_s = max(longest_s, gap)
            now = end
            if state.clock[at.LOG_ROWS] < state.log.shape[0]:
                pool[at.FREE_BLOCKS] = free
                log_batch(state, replica, slot, clock_s, end)
            if not alone:
                break
        state.gaps[int(timing[at.BIN])] += counted
        ends[place], step[at.DECODE_KV] = now, keys
        timing[at.STALL_S], timing[at.LONGEST_S] = stall_s, longest_s
        timing[at.BIN_LOW_S], timing[at.BIN_HIGH_S] = low_s, high_s
        rounds[at.REPEATS] -= made
        rounds[at.REPEATED] += made
        batched += made * size
        iterations += made * counts_iteration
        if not alone and must_end == 0:
            back = oldest + pool[at.IN_FLIGHT]
            back = back if back <= last else back - stages.size
            ring[oldest], ring[back] = ring[back], place
            oldest = oldest + 1 if oldest < last else 0
            place = ring[oldest]
            now = ends[place]
    gauge[at.CLOCK_S], gauge[at.GAPS_S] = clock_s, gaps_s
    gauge[at.BUSY_S], gauge[at.JOULES] = busy_s, joules
    gauge[at.BLOCK_SECONDS], gauge[at.REQUEST_SECONDS] = block_seconds, inside_seconds
    pool[at.FREE_BLOCKS], pool[at.OLDEST] = free, oldest
    pool[at.MAX_USED_BLOCKS] = max(pool[at.MAX_USED_BLOCKS], total - free)
    count_batch(pool, iterations, batched, batched * (1 + pool[at.NUM_DRAFTS]))
    return must_end


@kernel(several(f8, 3)(*arrays(f8, 1), f8, *arrays(f8, 1), f8))
def pass_stages(
    priced: Floats, keys: float, stages: Floats, now: float
) -> tuple[float, float, float]:
    """Pass a priced batch through the stages, each of which processes batches in order.

    Returns its end, the work of all stages and the waits between them. NaN prices stay NaN: `max`
    returns its first argument unless another one is larger.
    """
    last = max(priced[at.BASE_S] + priced[at.SLOPE_S] * keys, priced[at.MIN_S])
    last += priced[at.ADDED_S] + priced[at.DRAFTS_SLOPE_S] * keys
    end, worked, waited = now, 0.0, 0.0
    if stages.size > 1:
        each = max(
            priced[at.STAGE_BASE_S] + priced[at.STAGE_SLOPE_S] * keys, priced[at.STAGE_MIN_S]
        )
        each += priced[at.STAGE_ADDED_S]
        for stage in range(stages.size - 1):
            start_s = max(end, stages[stage])
            waited += start_s - end
            end = start_s + each
            stages[stage] = end
            worked += each
    start_s = max(end, stages[stages.size - 1])
    waited += start_s - end
    end = start_s + last
    stages[stages.size - 1] = end
    return end, worked + last, waited


@kernel(f8(*arrays(f8, 1), f8, i8))
def drawn_j(priced: Floats, keys: float, stages: int) -> float:
    """Return the joules of a priced batch, idle stages during its launches included."""
    busy = priced[at.BASE_S] + priced[at.SLOPE_S] * keys
    waits = max(busy, priced[at.MIN_S]) + priced[at.ADDED_S] - busy
    if stages > 1:
        busy = priced[at.STAGE_BASE_S] + priced[at.STAGE_SLOPE_S] * keys
        each = max(busy, priced[at.STAGE_MIN_S]) + priced[at.STAGE_ADDED_S]
        waits += (stages - 1) * (each - busy)
    return priced[at.BASE_J] + priced[at.SLOPE_J] * keys + priced[at.WAITING_W] * waits  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), f8, *arrays(f8, 3), f8, i8))
def run_stages(
    priced: Floats,
    keys: float,
    stages: Floats,
    timing: Floats,
    gauge: Floats,
    now: float,
    counts_iteration: int,
) -> float:
    """Pass a priced batch through its stages and add work and joules; return its end.

    One batch of the synchronous ranks counts the work and joules of all of them.
    """
    end, worked, waited = pass_stages(priced, keys, stages, now)
    timing[at.STALL_S] += waited
    if counts_iteration:
        gauge[at.BUSY_S] += worked
        gauge[at.JOULES] += drawn_j(priced, keys, stages.size)
    return end
