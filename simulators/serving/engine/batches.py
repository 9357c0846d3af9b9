"""Batches in flight: sums that set their price, accepted draft tokens, repetition, pipeline stages.

Acceptance of draft tokens depends on the seed, the request and its computed tokens only, so a
sequence accepts the same drafts whatever the rest of the batch is.

A batch of decodes is repeated without calling the scheduler while only context lengths grow. A
repeat is priced, allocates blocks and ends like any other iteration, but does not visit every
request, except to draw its accepted draft tokens. Times of requests are bit-identical to those of
calling the scheduler in every iteration (a test compares both).
"""

from __future__ import annotations

from math import inf
from typing import Any

from simulators.core.jit import Floats, Ints, arrays, boolean, f8, i8, matrix, pointer, several
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import blocks_missing
from simulators.serving.engine.replica import (
    OPTIONAL_FEATURES,
    PRICE,
    STATE,
    ReplicaState,
    count_batch,
    kernel,
    log_batch,
    pool_of,
    ranks_with,
)
from simulators.serving.engine.token_gaps import gap_bin, gap_edge


@kernel(f8(matrix(i8), *arrays(i8, 2), i8, i8, *arrays(f8, 1)))
def sum_batch(
    request: Ints, batch: Ints, tokens: Ints, size: int, checked: int, step: Floats
) -> float:
    """Write the sums of a batch; return its tokens. Each decode verifies `checked` tokens."""
    step[:] = 0.0
    decodes, keys = 0, 0
    for i in range(size):
        req, num_scheduled = batch[i], tokens[i]
        num_computed, prompt = request[req, at.NUM_COMPUTED], request[req, at.PROMPT]
        if num_computed > prompt:
            decodes += 1
            keys += num_computed
            continue
        step[at.PREFILLS] += 1.0
        step[at.PREFILL_TOKENS] += num_scheduled
        step[at.PREFILL_PAIRS] += (
            num_scheduled * num_computed + num_scheduled * (num_scheduled + 1) // 2
        )
        step[at.PREFILL_KV] += num_computed + num_scheduled
        step[at.PREFILL_SQUARES] += num_scheduled * num_scheduled
        step[at.PREFILL_PAST] += (num_computed + at.PAST_STEP - 1) // at.PAST_STEP * at.PAST_STEP
        if num_computed + num_scheduled == prompt:
            step[at.LOGITS_ROWS] += 1.0
    step[at.DECODES], step[at.DECODE_KV] = decodes, keys
    step[at.LOGITS_ROWS] += checked * decodes
    step[at.TOKENS] = step[at.PREFILL_TOKENS] + checked * step[at.DECODES]
    step[at.ALL_RANK_TOKENS] = step[at.TOKENS]
    return step[at.TOKENS]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def combine_ranks(state: ReplicaState, first: int) -> int:
    """Write the sums that price the synchronous batches of all ranks.

    Returns the keys that a repetition adds.

    Attention takes as long as on the busiest rank, the one with the most tokens, then the most
    keys. Experts process the tokens of all ranks. Collectives wait for the tokens of all other
    ranks: longest on the rank with the fewest tokens, `(ranks - 1) / ranks` of all if balanced.
    """
    busiest, together, least = first, 0.0, inf
    _, ranks = ranks_with(state, first)
    for rank in range(first, first + ranks):
        least = min(least, state.step[rank, at.TOKENS] if state.sizes[rank] > 0 else 0.0)
        if state.sizes[rank] > 0:
            step, most = state.step[rank], state.step[busiest]
            together += step[at.TOKENS]
            if state.sizes[busiest] == 0 or (step[at.TOKENS], step[at.DECODE_KV]) > (
                most[at.TOKENS],
                most[at.DECODE_KV],
            ):
                busiest = rank
    for rank in range(first, first + ranks):
        if state.sizes[rank] > 0:
            for column in range(at.STEP_COLUMNS):
                state.priced[rank, column] = state.step[busiest, column] * ranks
            state.priced[rank, at.ALL_RANK_TOKENS] = together
            if ranks > 1:
                longest = (together - least) * ranks / (together * (ranks - 1))
                state.priced[rank, at.RANK_IMBALANCE] = longest - 1.0
    return int(state.priced[busiest, at.DECODES])


LOW_BITS = at.CERTAIN - 1


@kernel(i8(i8))
def mixed(bits: int) -> int:
    """Return a 31-bit hash (multiply and shift; after Wellons, 2018)."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & LOW_BITS
    bits = ((bits ^ (bits >> 15)) * 0x46CA68B5) & LOW_BITS
    return bits ^ (bits >> 16)


@kernel(i8(*arrays(i8, 2)))
def drafted(limits: Ints, pool: Ints) -> int:
    """Return the draft tokens per decode at the current number of requests."""
    levels, running = 0, pool[at.NUM_RUNNING]
    if limits[at.DRAFT_COUNTS_WAITING] == 1:
        running += pool[at.WAITING] + pool[at.NUM_SWAPPED] + pool[at.WAITING_KV]
    while levels < limits[at.DRAFT_DEPTH] and running <= limits[at.DRAFT_MAX_RUNNING + levels]:
        levels += 1
    if levels > 0 and limits[at.DRAFT_DEPTH] < limits[at.NUM_DRAFT_TOKENS]:
        return limits[at.NUM_DRAFT_TOKENS]  # type: ignore[no-any-return]
    return levels


@kernel(boolean(*arrays(i8, 2)))
def drafts_change(limits: Ints, pool: Ints) -> bool:
    """Return whether the next iteration may draft another number of tokens.

    With several batches in flight the answer is always yes, because batches accept different
    numbers of tokens.
    """
    if limits[at.NUM_DRAFT_TOKENS] == 0:
        return False
    has_several_batches = limits[at.STAGES] * limits[at.RANKS] > 1
    return has_several_batches or drafted(limits, pool) != pool[at.NUM_DRAFTS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, matrix(i8), i8, i8))
def verify(limits: Ints, drafts: int, request: Ints, req: int, num_computed: int) -> int:
    """Return the accepted draft tokens of a request: the next of the cycle, or a drawn number."""
    if limits[at.ACCEPT_CYCLE] == 0:
        return accepted(limits, drafts, req, num_computed)
    place = request[req, at.NUM_VERIFIED] % limits[at.ACCEPT_CYCLE]
    return min(drafts, limits[at.ACCEPTANCE + place])  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def accepted(limits: Ints, drafts: int, req: int, num_computed: int) -> int:
    """Return the accepted draft tokens of a request with `num_computed` computed tokens."""
    drawn = mixed(mixed(mixed(limits[at.SEED] & LOW_BITS) ^ req) ^ num_computed)
    count = 0
    for i in range(min(drafts, limits[at.DRAFT_DEPTH])):  # faster than leaving the loop early
        count += drawn < limits[at.ACCEPTANCE + i]
    return count


@kernel(several(i8, 2)(STATE, i8, i8, i8))
def draw(state: ReplicaState, replica: int, slot: int, made: int) -> tuple[int, int]:
    """Draw the accepted tokens of a repeated batch in the current iteration; add them to `tokens`.

    Returns the blocks that the next repetition must allocate (at least UNTIL_CHANGED if a request
    ends) and the growth of the keys.
    """
    request, batch, tokens = state.request, state.batch[slot], state.tokens[slot]
    limits, drafts = state.own[pool_of(state, replica)], state.pool[replica, at.NUM_DRAFTS]
    block, lacking, grown = limits[at.BLOCK], 0, 0
    ahead = limits[at.NUM_DRAFT_TOKENS] + limits[at.NUM_LOOKAHEAD_TOKENS]
    for i in range(state.sizes[slot]):
        req = batch[i]
        prompt, num_computed = request[req, at.PROMPT], request[req, at.NUM_COMPUTED]
        if num_computed <= prompt:
            continue
        end, num_computed = prompt + request[req, at.OUTPUT], num_computed + tokens[i] + made
        allocated = request[req, at.BLOCKS] * block
        last_slot = end + limits[at.SLOTS_BEYOND_END]
        needed = min(num_computed - 1 + ahead, last_slot)
        if made > 0 and needed > allocated:
            request[req, at.BLOCKS] = -(-needed // block)
            allocated = request[req, at.BLOCKS] * block
        more = min(end - num_computed, verify(limits, drafts, request, req, num_computed))
        request[req, at.NUM_VERIFIED] += 1
        tokens[i] += more
        grown += 1 + more
        needed = min(num_computed + more + ahead, last_slot)
        if num_computed + more == end:
            lacking += at.UNTIL_CHANGED
        elif needed > allocated:
            lacking += -(-needed // block) - request[req, at.BLOCKS]
    return lacking, grown


@kernel(several(i8, 2)(STATE, i8, i8, i8, f8))
def draw_ahead(
    state: ReplicaState, replica: int, slot: int, free: int, now: float
) -> tuple[int, int]:
    """End a batch of decodes with drafts and form it again, behind an equal batch in flight.

    Returns the allocated blocks and the growth of the keys. Without as many free blocks (at least
    UNTIL_CHANGED are needed if a request ends or has its last token in flight) nothing changes.
    """
    request, times, tokens = state.request, state.times, state.tokens[slot]
    limits, drafts, gauge = state.limits, state.pool[replica, at.NUM_DRAFTS], state.gauge[replica]
    needed, grown, known_gap, known_bin = 0, 0, 0.0, gap_bin(0.0)
    for i in range(state.sizes[slot]):
        req = state.batch[slot, i]
        known = request[req, at.NUM_COMPUTED] - request[req, at.NUM_OUTPUT_PLACEHOLDERS]
        tokens[i] = 1 + verify(limits, drafts, request, req, known)
        if known + tokens[i] + 1 >= request[req, at.PROMPT] + request[req, at.OUTPUT]:
            needed += at.UNTIL_CHANGED
        request[req, at.NUM_COMPUTED] += tokens[i] - (1 + drafts)
        needed += max(0, blocks_missing(limits, request, req))
        grown += tokens[i]
    for i in range(state.sizes[slot]):
        req = state.batch[slot, i]
        if needed >= free:
            request[req, at.NUM_COMPUTED] -= tokens[i]
        else:
            request[req, at.BLOCKS] += max(0, blocks_missing(limits, request, req))
            request[req, at.NUM_VERIFIED] += 1
            gap = now - times[req, at.LAST_TOKEN]
            if gap != known_gap:
                known_gap, known_bin = gap, gap_bin(gap)
            state.gaps[known_bin] += 1
            gauge[at.GAPS_S] += gap
            times[req, at.LONGEST_GAP] = max(times[req, at.LONGEST_GAP], gap)
            times[req, at.LAST_TOKEN] = now
        request[req, at.NUM_COMPUTED] += 1 + drafts
        tokens[i] = 1 + drafts
    return needed, grown


@kernel(i8(STATE, i8, i8))
def possible_repeats(state: ReplicaState, slot: int, holds: int) -> int:
    """Return how often a batch of decodes can be repeated before a request ends.

    `crossings` counts the requests that need a block, by iteration modulo the block size, so that
    a repetition knows its new blocks without visiting the requests.
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


@kernel(boolean(STATE, i8, i8))
def is_same_batch(state: ReplicaState, older: int, slot: int) -> bool:
    """Return whether two batches of decodes have the same requests and drafts."""
    size = state.sizes[slot]
    if older == slot or state.sizes[older] != size or state.step[older, at.PREFILLS] > 0.0:
        return False
    for i in range(size):
        if state.batch[older, i] != state.batch[slot, i]:
            return False
    return state.tokens[older, 0] == state.tokens[slot, 0]  # type: ignore[no-any-return]


@kernel(boolean(STATE, i8, i8))
def repeat_ahead(state: ReplicaState, replica: int, slot: int) -> bool:
    """Form the only batch in flight once more, if the scheduler would; return whether it does.

    Both batches can then be repeated together.
    """
    pool, request, block = state.pool[replica], state.request, state.limits[at.BLOCK]
    older = 2 * replica + state.in_flight[replica, pool[at.OLDEST]]
    size, repeats, crossings = state.sizes[older], state.rounds[older, at.REPEATS], state.crossings
    free = pool[at.FREE_BLOCKS] - crossings[older, min(1, block - 1)]
    state.rounds[older, at.REPEATS] = 0
    if (
        repeats == 0
        or size != pool[at.RUNNING]
        or free < 1
        or state.limits[at.NUM_DRAFT_TOKENS] > 0
    ):
        return False
    state.rounds[older, at.REPEATS] = repeats - 1
    for i in range(size):
        req = state.batch[older, i]
        state.batch[slot, i], state.tokens[slot, i] = req, 1
        request[req, at.BLOCKS] += request[req, at.NUM_COMPUTED] > request[req, at.BLOCKS] * block
        request[req, at.NUM_COMPUTED] += 1
        request[req, at.NUM_OUTPUT_PLACEHOLDERS] += 1
    for i in range(1, block):
        crossings[slot, i - 1] = crossings[older, i]
    crossings[slot, block - 1] = crossings[older, 0]
    for column in range(at.STEP_COLUMNS):
        state.step[slot, column] = state.step[older, column]
    state.step[slot, at.DECODE_KV] += size
    for column in range(at.PRICE_COLUMNS):
        state.price[slot, column] = state.price[older, column]
    pool[at.FREE_BLOCKS] = free
    pool[at.MAX_USED_BLOCKS] = max(pool[at.MAX_USED_BLOCKS], pool[at.TOTAL_BLOCKS] - free)
    pool[at.ELAPSED] = pool[at.REPEATED_ITERATIONS] = 0
    pool[at.IN_FLIGHT] += 1
    state.sizes[slot], state.rounds[slot, at.REPEATED] = size, 0
    return True


@kernel(i8(STATE, i8, i8))
def expect_tokens(state: ReplicaState, replica: int, slot: int) -> int:
    """Count the tokens of a new batch as computed, so that the next one can be formed.

    `tokens` becomes the number of output tokens that each request may get. Returns the number of
    running requests, which include those of batches in flight.
    """
    request, tokens, pool = state.request, state.tokens[slot], state.pool[replica]
    for i in range(state.sizes[slot]):
        req = state.batch[slot, i]
        if request[req, at.NUM_COMPUTED] > request[req, at.PROMPT]:
            tokens[i] = 1 + pool[at.NUM_DRAFTS]
            request[req, at.NUM_COMPUTED] += tokens[i]
        else:
            request[req, at.NUM_COMPUTED] += tokens[i]
            tokens[i] = request[req, at.NUM_COMPUTED] == request[req, at.PROMPT]
            request[req, at.NUM_COMPUTED] += tokens[i]  # the prefill brings a token
        request[req, at.NUM_OUTPUT_PLACEHOLDERS] += tokens[i]
        state.running[replica, pool[at.RUNNING]] = req
        pool[at.RUNNING] += 1
    return pool[at.RUNNING]  # type: ignore[no-any-return]


@kernel(i8(STATE, i8, i8))
def receive_tokens(state: ReplicaState, slot: int, i: int) -> int:
    """Add the output tokens of an ended batch to a request; return its number of tokens.

    Returns 0 if the batch brings no token. A request that was preempted meanwhile gets its tokens
    nevertheless, and computes them again.
    """
    request, req, expected = state.request, state.batch[slot, i], state.tokens[slot, i]
    if expected == 0 or state.times[req, at.COMPLETED] >= 0.0:
        return 0
    row = request[req]
    is_preempted = row[at.BLOCKS] == 0
    known = row[at.NUM_COMPUTED] - row[at.NUM_OUTPUT_PLACEHOLDERS]
    known, received = row[at.PROMPT] if is_preempted else known, 1
    if OPTIONAL_FEATURES and expected > 1:
        received += verify(state.limits, expected - 1, request, req, known)
        row[at.NUM_VERIFIED] += 1
        received = min(received, row[at.PROMPT] + row[at.OUTPUT] - known)
    if is_preempted:
        row[at.PROMPT] += received
        row[at.OUTPUT] -= received
    else:
        row[at.NUM_COMPUTED] -= expected - received
        row[at.NUM_OUTPUT_PLACEHOLDERS] -= expected
    return known + received  # type: ignore[no-any-return]


@kernel(i8(STATE, i8))
def stop_repeating(state: ReplicaState, replica: int) -> int:
    """Call the scheduler again at the end of every batch in flight, on all ranks of a replica.

    Returns the number of batches in flight of a rank.
    """
    stages = state.limits[at.MAX_CONCURRENT_BATCHES]
    first, ranks = ranks_with(state, replica)
    for slot in range(first * stages, (first + ranks) * stages):
        state.rounds[slot, at.REPEATS] = 0
    return stages  # type: ignore[no-any-return]


@kernel(i8(pointer(PRICE), STATE, i8, f8))
def repeat_first(price: Any, state: ReplicaState, replica: int, until: float) -> int:
    """Repeat the batch that ends first while its end is before `until`.

    Returns 1 if this batch cannot be repeated again: its repetitions are used up, or no block is
    free. Most iterations happen here, so the sums of a replica are local variables.
    """
    pool, gauge, block = state.pool[replica], state.gauge[replica], state.limits[at.BLOCK]
    ends, stages, ring = state.ends[replica], state.stages[replica], state.in_flight[replica]
    is_pair = state.limits[at.ASYNC_SCHEDULING] == 1 and pool[at.IN_FLIGHT] == 2
    inside = pool[at.WAITING] + pool[at.WAITING_KV] + pool[at.NUM_RUNNING] + pool[at.NUM_SWAPPED]
    free, oldest, last = pool[at.FREE_BLOCKS], pool[at.OLDEST], ring.size - 1
    total, alone = pool[at.TOTAL_BLOCKS], is_pair or pool[at.IN_FLIGHT] == 1
    drafts = state.own[pool_of(state, replica), at.NUM_DRAFT_TOKENS] > 0
    drafts = drafts and state.limits[at.ASYNC_SCHEDULING] == 0
    drafts_ahead = OPTIONAL_FEATURES and is_pair and pool[at.NUM_DRAFTS] > 0
    clock_s = gauge[at.CLOCK_S]
    block_seconds, inside_seconds = gauge[at.BLOCK_SECONDS], gauge[at.REQUEST_SECONDS]
    busy_s, joules = gauge[at.BUSY_S], gauge[at.JOULES]
    gaps_s, filled_s, batched, iterations, must_end = gauge[at.GAPS_S], gauge[at.FILLED_S], 0, 0, 0
    place = ring[oldest]
    now = ends[place]
    while now < until and must_end == 0:
        newest = 1 - place if is_pair else place
        slot, formed = replica * ring.size + place, replica * ring.size + newest
        rounds, timing, crossings = state.rounds[slot], state.timing[slot], state.crossings[formed]
        step, priced, size = state.priced[formed], state.price[formed], state.sizes[slot]
        formed_end = ends[newest]
        keys = step[at.DECODE_KV]
        growth = rounds[at.KEYS_PER_REPEAT]
        counts_iteration = rounds[at.COUNTS_ITERATION]
        made, most, stall_s = 0, rounds[at.REPEATS], timing[at.STALL_S]
        phase, counted, longest_s = rounds[at.REPEATED] % block, 0, timing[at.LONGEST_S]
        low_s, high_s = timing[at.BIN_LOW_S], timing[at.BIN_HIGH_S]
        while now < until:
            phase = phase + 1 if phase + 1 < block else 0
            new_blocks = crossings[phase]
            if OPTIONAL_FEATURES and drafts_ahead and made < most:
                new_blocks, growth = draw_ahead(state, replica, slot, free, now)
                gaps_s = gauge[at.GAPS_S]
            elif OPTIONAL_FEATURES and drafts:
                new_blocks, growth = draw(state, replica, slot, rounds[at.REPEATED] + made)
                filled_s += now * (growth - state.step[slot, at.DECODES])  # drafts
            if made == most or free - new_blocks < 1:
                must_end = 1
                break
            made += 1
            filled_s += now * (growth if is_pair else size)
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
            formed_end, end = end, formed_end if is_pair else end
            stall_s += 0.0 if is_pair else waited
            if counts_iteration:
                busy_s += worked
                joules += drawn_j(priced, keys, stages.size)
            gap = end - now
            if not drafts_ahead:
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
                log_batch(state, replica, formed, clock_s, formed_end)
            if not alone:
                break
        state.gaps[int(timing[at.BIN])] += counted
        step[at.DECODE_KV] = keys
        if is_pair:
            ends[newest] = state.timing[formed, at.FIRST_END] = formed_end
            for i in range(size if drafts_ahead and made > 0 else 0):
                state.times[state.batch[slot, i], at.LAST_END] = formed_end
        ends[place] = now
        timing[at.STALL_S], timing[at.LONGEST_S] = stall_s, longest_s
        timing[at.BIN_LOW_S], timing[at.BIN_HIGH_S] = low_s, high_s
        rounds[at.REPEATS] -= made
        rounds[at.REPEATED] += 0 if drafts_ahead else made
        batched += made * size
        pool[at.REPEATED_ITERATIONS] += made
        iterations += made * counts_iteration
        if not alone and must_end == 0:
            back = oldest + pool[at.IN_FLIGHT]
            back = back if back <= last else back - ring.size
            ring[oldest], ring[back] = ring[back], place
            oldest = oldest + 1 if oldest < last else 0
            place = ring[oldest]
            now = ends[place]
    gauge[at.CLOCK_S], gauge[at.GAPS_S], gauge[at.FILLED_S] = clock_s, gaps_s, filled_s
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

    Returns the end, the work of all stages and the waits between stages. NaN prices stay NaN: `max`
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
    """Return the joules of a priced batch, including stages that wait for kernel launches."""
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
