"""While nothing but context lengths grows, a batch of decodes is repeated without asking anyone.

Each repetition is an iteration like any other: it is priced, takes blocks, ends at its own time.
What is saved is looking at every request in turn. The times of all requests are those of asking the
scheduler each time, to the last bit (a test compares the two).
"""

from __future__ import annotations

from typing import Any

from simulators.core.jit import Floats, arrays, f8, i8, pointer
from simulators.serving.engine.batch import (
    ADDED_S,
    BASE_J,
    BASE_S,
    DECODE_KV,
    FLOOR_S,
    PRICE,
    SLOPE_J,
    SLOPE_S,
    STAGE_ADDED_S,
    STAGE_BASE_S,
    STAGE_FLOOR_S,
    STAGE_SLOPE_S,
    UNTIL_KV,
    WAITING_W,
)
from simulators.serving.engine.replica import (
    BLOCK,
    BLOCKS,
    DONE,
    FLIGHT,
    FREE,
    MOST_USED,
    OLDEST,
    OUTPUT,
    PROMPT,
    STAGES,
    TAKEN,
    TOTAL,
    kernel,
)
from simulators.serving.engine.state import (
    BIN,
    BIN_HIGH_S,
    BIN_LOW_S,
    BUSY_S,
    GAPS_S,
    JOULES,
    LOGGED,
    LONGEST_S,
    MADE,
    NEXT_LEAVE,
    REPEATS,
    STALL_S,
    WORLD,
    World,
    count,
    gap_bin,
    gap_edge,
    log_batch,
    tick,
)


@kernel(i8(WORLD, i8, i8))
def prepare_to_coast(world: World, slot: int, holds: int) -> int:
    """Return how often a batch of decodes may be repeated before a request ends or needs care.

    The iterations at which requests outgrow their blocks are counted by their remainder modulo the
    block size, so that a repetition knows its new blocks without looking at the requests.
    """
    request, block = world.request, world.limits[BLOCK]
    crossings = world.crossings[slot]
    crossings[:] = 0
    repeats = holds - 1
    for i in range(world.sizes[slot]):
        who = world.batch[slot, i]
        done = request[who, DONE]
        if done <= request[who, PROMPT]:
            return 0
        repeats = min(repeats, request[who, PROMPT] + request[who, OUTPUT] - done - 1)
        crossing = request[who, BLOCKS] * block - done + 1
        if crossing > block:
            repeats = min(repeats, crossing - 1)
        else:
            crossings[crossing % block] += 1
    return repeats


@kernel(i8(WORLD, i8))
def stop_coasting(world: World, replica: int) -> int:
    """Have the scheduler asked at the end of every batch in flight; return the batches' places."""
    stages = world.limits[STAGES]
    for slot in range(replica * stages, (replica + 1) * stages):
        world.rounds[slot, REPEATS] = 0
    return stages  # type: ignore[no-any-return]


@kernel(i8(pointer(PRICE), WORLD, i8, f8))
def coast(price: Any, world: World, replica: int, until: float) -> int:
    """Repeat the batch that ends first, while that is before `until` and it may be repeated.

    Returns 1 if the batch that now ends first must end for good: it has been repeated as often as
    it may, could find no free block, or a client has given up.
    """
    pool, gauge = world.pool[replica], world.gauge[replica]
    ends, stages, places = world.ends[replica], world.stages[replica], world.places[replica]
    block = world.limits[BLOCK]
    while True:
        place = places[pool[OLDEST]]
        slot, now = replica * stages.size + place, ends[place]
        if not now < until:
            return 0
        rounds, paces = world.rounds[slot], world.paces[slot]
        new_blocks = world.crossings[slot, (rounds[MADE] + 1) % block]
        if rounds[REPEATS] == 0 or pool[FREE] - new_blocks < 1 or now >= gauge[NEXT_LEAVE]:
            return 1
        rounds[REPEATS] -= 1
        rounds[MADE] += 1
        tick(pool, gauge, now)
        pool[FREE] -= new_blocks
        pool[TAKEN] += new_blocks
        pool[MOST_USED] = max(pool[MOST_USED], pool[TOTAL] - pool[FREE])
        step, priced, size = world.step[slot], world.price[slot], world.sizes[slot]
        step[DECODE_KV] += size
        if step[DECODE_KV] >= priced[UNTIL_KV]:
            price(step, world.shape, world.table, priced)
        end = run_stages(priced, step[DECODE_KV], stages, paces, gauge, now)
        gap = end - now
        if not paces[BIN_LOW_S] <= gap < paces[BIN_HIGH_S]:
            paces[BIN] = place_of = gap_bin(gap)
            paces[BIN_LOW_S], paces[BIN_HIGH_S] = gap_edge(place_of), gap_edge(place_of + 1)
        world.gaps[int(paces[BIN])] += size
        gauge[GAPS_S] += size * gap
        paces[LONGEST_S] = max(paces[LONGEST_S], gap)
        count(pool, size, size)
        if world.clock[LOGGED] < world.log.shape[0]:
            log_batch(world, replica, slot, now, end)
        ends[place] = end
        if stages.size > 1:
            back = (pool[OLDEST] + pool[FLIGHT]) % stages.size
            places[pool[OLDEST]], places[back] = places[back], place
            pool[OLDEST] = (pool[OLDEST] + 1) % stages.size


@kernel(f8(*arrays(f8, 1), f8, *arrays(f8, 3), f8))
def run_stages(
    priced: Floats, keys: float, stages: Floats, paces: Floats, gauge: Floats, now: float
) -> float:
    """Pass a priced batch from stage to stage, each of which takes batches in order.

    A price that is not a number stays none: `max` returns its first argument unless another is
    larger.
    """
    last_busy = priced[BASE_S] + priced[SLOPE_S] * keys
    last = max(last_busy, priced[FLOOR_S]) + priced[ADDED_S]
    busy = priced[STAGE_BASE_S] + priced[STAGE_SLOPE_S] * keys
    each = max(busy, priced[STAGE_FLOOR_S]) + priced[STAGE_ADDED_S]
    end, worked, waited = now, 0.0, 0.0
    for stage in range(stages.size):
        spent = last if stage == stages.size - 1 else each
        begun = max(end, stages[stage])
        waited += begun - end
        end = begun + spent
        stages[stage] = end
        worked += spent
    waits = last - last_busy + (stages.size - 1) * (each - busy)
    paces[STALL_S] += waited
    gauge[BUSY_S] += worked
    gauge[JOULES] += priced[BASE_J] + priced[SLOPE_J] * keys + priced[WAITING_W] * waits
    return end
