"""While nothing but context lengths grows, a batch of decodes is repeated without asking anyone.

Each repetition is an iteration like any other: it is priced, takes blocks, ends at its own time.
What is saved is looking at every request in turn. The times of all requests are those of asking the
scheduler each time, to the last bit (a test compares the two).
"""

from __future__ import annotations

from typing import Any

from simulators.core.jit import f8, i8, pointer
from simulators.serving.batch import (
    ADDED_S,
    BASE_J,
    BASE_S,
    DECODE_KV,
    FLOOR_S,
    PRICE,
    SLOPE_J,
    SLOPE_S,
    UNTIL_KV,
    WAITING_W,
)
from simulators.serving.kernel import kernel
from simulators.serving.replica import (
    BATCH,
    BATCHED,
    BLOCK,
    BLOCKS,
    COASTED,
    COASTING,
    DONE,
    FREE,
    ITERATIONS,
    MOST_USED,
    OUTPUT,
    PROMPT,
    TOKENS_SEEN,
    TOTAL,
)
from simulators.serving.world import (
    BLOCK_SECONDS,
    BUSY_S,
    FIRST_END,
    GAPS_S,
    JOULES,
    KV_CLOCK,
    LOGGED,
    LONGEST_S,
    WORLD,
    World,
    gap_bin,
    gap_edge,
    log,
    tick,
)


@kernel(i8(WORLD, i8, i8))
def prepare_to_coast(world: World, replica: int, holds: int) -> int:
    """Return how often a batch of decodes may be repeated before a request ends or needs care.

    The iterations at which requests outgrow their blocks are counted by their remainder modulo the
    block size, so that a repetition knows its new blocks without looking at the requests.
    """
    request, block = world.request, world.limits[BLOCK]
    crossings = world.crossings[replica]
    crossings[:] = 0
    repeats = holds - 1
    for i in range(world.sizes[replica, 0]):
        who = world.batch[replica, i]
        done = request[who, DONE]
        if done <= request[who, PROMPT]:
            return 0
        repeats = min(repeats, request[who, PROMPT] + request[who, OUTPUT] - done - 1)
        crossing = request[who, BLOCKS] * block - done + 1
        if crossing > block:
            repeats = min(repeats, crossing - 1)
        else:
            crossings[crossing % block] += 1
    world.gauge[replica, FIRST_END] = world.ends[replica, 0]
    world.gauge[replica, LONGEST_S] = 0.0
    return repeats


@kernel(f8(pointer(PRICE), WORLD, i8, f8))
def coast(price: Any, world: World, replica: int, until: float) -> float:
    """Repeat the batch at least once, and while it ends before `until`; return when it then ends.

    When a repetition could find no free block, the scheduler is asked again instead.
    """
    pool, gauge, step = world.pool[replica], world.gauge[replica], world.step[replica]
    crossings, block, total = world.crossings[replica], world.limits[BLOCK], pool[TOTAL]
    size, rounds, free, left = pool[BATCH], pool[COASTED], pool[FREE], pool[COASTING]
    before = rounds
    end: float = world.ends[replica, 0]
    keys, priced = step[DECODE_KV], world.price[replica]
    used_s, busy_s, gaps_s, joules, longest = 0.0, 0.0, 0.0, 0.0, gauge[LONGEST_S]
    counted, low, high, place = 0, 0.0, 0.0, 0
    tick(world, replica, end)
    while left > 0:
        phase = (rounds + 1) % block
        if free - crossings[phase] < 1:
            left = 0
            break
        free -= crossings[phase]
        rounds += 1
        left -= 1
        keys += size
        if keys >= priced[UNTIL_KV]:
            step[DECODE_KV] = keys
            price(step, world.shape, world.table, priced)
        busy = priced[BASE_S] + priced[SLOPE_S] * keys
        spent = max(priced[FLOOR_S], busy) + priced[ADDED_S]
        begun = end
        end += spent
        gap = end - begun
        if not low <= gap < high:
            world.gaps[place] += counted
            counted, place = 0, gap_bin(gap)
            low, high = gap_edge(place), gap_edge(place + 1)
        counted += size
        longest = max(longest, gap)
        gaps_s += gap
        busy_s += spent
        used_s += (total - free) * gap
        joules += priced[BASE_J] + priced[SLOPE_J] * keys + priced[WAITING_W] * (spent - busy)
        if world.clock[LOGGED] < world.log.shape[0]:
            log(world, replica, begun, end)
        if end >= until:
            break
    world.gaps[place] += counted
    step[DECODE_KV] = keys
    pool[COASTED], pool[FREE], pool[COASTING] = rounds, free, left
    pool[MOST_USED] = max(pool[MOST_USED], total - free)
    pool[ITERATIONS] += rounds - before
    pool[BATCHED] += size * (rounds - before)
    pool[TOKENS_SEEN] += size * (rounds - before)
    gauge[GAPS_S] += size * gaps_s
    gauge[BUSY_S] += busy_s
    gauge[JOULES] += joules
    gauge[LONGEST_S] = longest
    gauge[BLOCK_SECONDS] += used_s
    gauge[KV_CLOCK] = end
    world.ends[replica, 0] = end
    return end
