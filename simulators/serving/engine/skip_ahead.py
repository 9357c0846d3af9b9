"""Repeats a batch of decodes without asking the scheduler, while nothing but context lengths grows.

Each repetition is an iteration like any other: it is priced, takes blocks, ends at its own time.
What is saved is looking at every request in turn. The times of all requests are those of asking the
scheduler each time, to the last bit (a test compares the two).
"""

from __future__ import annotations

from typing import Any

from simulators.core.jit import Floats, arrays, f8, i8, pointer
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel
from simulators.serving.engine.state import (
    STATE,
    State,
    count,
    gap_bin,
    gap_edge,
    log_batch,
    pool_of,
)


@kernel(i8(STATE, i8, i8))
def possible_repeats(state: State, slot: int, holds: int) -> int:
    """Return how often a batch of decodes may be repeated before a request ends or needs care.

    The iterations at which requests outgrow their blocks are counted by their remainder modulo the
    block size, so that a repetition knows its new blocks without looking at the requests.
    """
    request, block = state.request, state.limits[at.BLOCK]
    crossings = state.crossings[slot]
    crossings[:] = 0
    repeats = holds - 1
    for i in range(state.sizes[slot]):
        who = state.batch[slot, i]
        done = request[who, at.DONE]
        if done <= request[who, at.PROMPT]:
            return 0
        repeats = min(repeats, request[who, at.PROMPT] + request[who, at.OUTPUT] - done - 1)
        crossing = request[who, at.BLOCKS] * block - done + 1
        if crossing > block:
            repeats = min(repeats, crossing - 1)
        elif crossing == block:
            crossings[0] += 1
        else:
            crossings[crossing] += 1
    return repeats


@kernel(i8(STATE, i8))
def stop_repeating(state: State, replica: int) -> int:
    """Have the scheduler asked at the end of every batch in flight; return the pipeline's slots.

    Ranks that step together stop together.
    """
    stages = state.limits[at.STAGES]
    ranks = state.limits[at.RANKS]
    first = replica - replica % ranks
    for slot in range(first * stages, (first + ranks) * stages):
        state.rounds[slot, at.REPEATS] = 0
    return stages  # type: ignore[no-any-return]


@kernel(i8(pointer(PRICE), STATE, i8, f8))
def repeat_first(price: Any, state: State, replica: int, until: float) -> int:
    """Repeat the batch that ends first, while that is before `until` and it may be repeated.

    Returns 1 if the batch that now ends first must end for good: it has been repeated as often as
    it may, could find no free block, or a client has given up. Most iterations of all are made
    here, so what a replica adds up is held in numbers, not in arrays.
    """
    pool, gauge, block = state.pool[replica], state.gauge[replica], state.limits[at.BLOCK]
    ends, stages, ring = state.ends[replica], state.stages[replica], state.in_flight[replica]
    inside = pool[at.WAITING] + pool[at.HANDED] + pool[at.HOLDERS] + pool[at.SWAPPED]
    free, oldest, last = pool[at.FREE], pool[at.OLDEST], stages.size - 1
    clock_s, next_leave = gauge[at.CLOCK_S], gauge[at.NEXT_LEAVE]
    block_seconds, inside_seconds = gauge[at.BLOCK_SECONDS], gauge[at.INSIDE_SECONDS]
    gaps_s, batched, iterations, must_end = gauge[at.GAPS_S], 0, 0, 0
    place = ring[oldest]
    while ends[place] < until:
        slot, now = replica * stages.size + place, ends[place]
        rounds, timing = state.rounds[slot], state.timing[slot]
        new_blocks = state.crossings[slot, (rounds[at.MADE] + 1) % block]
        if rounds[at.REPEATS] == 0 or free - new_blocks < 1 or now >= next_leave:
            must_end = 1
            break
        rounds[at.REPEATS] -= 1
        rounds[at.MADE] += 1
        block_seconds += (pool[at.TOTAL] - free) * (now - clock_s)
        inside_seconds += inside * (now - clock_s)
        clock_s = now
        free -= new_blocks
        step, priced, size = state.priced[slot], state.price[slot], state.sizes[slot]
        step[at.DECODE_KV] += rounds[at.GROWTH]
        if step[at.DECODE_KV] >= priced[at.UNTIL_KV]:
            kind = pool_of(state, replica)
            price(step, state.shape[kind], state.table[kind], priced)
        leads = rounds[at.LEADS]
        end = run_stages(priced, step[at.DECODE_KV], stages, timing, gauge, now, leads)
        gap = end - now
        if not timing[at.BIN_LOW_S] <= gap < timing[at.BIN_HIGH_S]:
            timing[at.BIN] = place_of = gap_bin(gap)
            timing[at.BIN_LOW_S], timing[at.BIN_HIGH_S] = (
                gap_edge(place_of),
                gap_edge(place_of + 1),
            )
        state.gaps[int(timing[at.BIN])] += size
        gaps_s += size * gap
        timing[at.LONGEST_S] = max(timing[at.LONGEST_S], gap)
        batched += size
        iterations += leads
        ends[place] = end
        if state.clock[at.LOGGED] < state.log.shape[0]:
            pool[at.FREE] = free
            log_batch(state, replica, slot, now, end)
        if last > 0:
            back = oldest + pool[at.FLIGHT]
            back = back if back <= last else back - stages.size
            ring[oldest], ring[back] = ring[back], place
            oldest = oldest + 1 if oldest < last else 0
            place = ring[oldest]
    gauge[at.CLOCK_S], gauge[at.GAPS_S] = clock_s, gaps_s
    gauge[at.BLOCK_SECONDS], gauge[at.INSIDE_SECONDS] = block_seconds, inside_seconds
    pool[at.FREE], pool[at.OLDEST] = free, oldest
    pool[at.MOST_USED] = max(pool[at.MOST_USED], pool[at.TOTAL] - free)
    count(pool, iterations, batched, batched)
    return must_end


@kernel(f8(*arrays(f8, 1), f8, *arrays(f8, 3), f8, i8))
def run_stages(
    priced: Floats,
    keys: float,
    stages: Floats,
    timing: Floats,
    gauge: Floats,
    now: float,
    leads: int,
) -> float:
    """Pass a priced batch from stage to stage, each of which takes batches in order.

    Work and joules are those of all ranks: they count where the batch leads. A price that is not a
    number stays none: `max` returns its first argument unless another is larger.
    """
    last_busy = priced[at.BASE_S] + priced[at.SLOPE_S] * keys
    last = max(last_busy, priced[at.FLOOR_S]) + priced[at.ADDED_S]
    busy = priced[at.STAGE_BASE_S] + priced[at.STAGE_SLOPE_S] * keys
    each = max(busy, priced[at.STAGE_FLOOR_S]) + priced[at.STAGE_ADDED_S]
    end, worked, waited = now, 0.0, 0.0
    for stage in range(stages.size):
        spent = last if stage == stages.size - 1 else each
        begun = max(end, stages[stage])
        waited += begun - end
        end = begun + spent
        stages[stage] = end
        worked += spent
    waits = last - last_busy + (stages.size - 1) * (each - busy)
    timing[at.STALL_S] += waited
    if leads:
        drawn = priced[at.BASE_J] + priced[at.SLOPE_J] * keys + priced[at.WAITING_W] * waits
        gauge[at.BUSY_S] += worked
        gauge[at.JOULES] += drawn
    return end
