"""Prefills first, in batches of their own; decodes run when no waiting request fits.

SGLang's scheduler (Zheng et al., "SGLang: efficient execution of structured language model
programs", 2024; `managers/schedule_policy.py`): `chunk_size` is its `chunked_prefill_size`. A
prompt is admitted if it fits with its own longest answer and a share of the answers of the running
requests. The share starts at 0.7, falls to 0.14 of that within 600 decode iterations, and is
estimated anew after a preemption; it is 1 if clients ignore the end of sequence. In that case, and
without a prefix cache, a prompt enters if memory suffices whenever an answer ends. After a refusal
none is admitted until a running request ends (`batch_is_full`).

Without blocks for all decodes, those with the fewest output tokens are preempted, of these the
longest prompts, and return to the end of the queue.

`poll_interval` is its `scheduler_recv_interval`: new requests are received after every batch of
prompts, and otherwise only every so many decode iterations (`scheduler_recv_skipper.py`), which
gathers prompts into fewer, larger batches. It counts the iterations of all pipeline stages' batches
together, so one batch's share of them is not known ahead: the stages ask after each.
"""

from __future__ import annotations

from simulators.core.jit import Ints, boolean, f8, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import (
    admit,
    append_blocks,
    blocks_for,
    blocks_missing,
    cached_tokens_of,
    has_waiting_slot,
    preempt,
    shared_blocks,
)
from simulators.serving.engine.replica import (
    SCHEDULE,
    VIEW,
    View,
    keep_running,
    kernel,
    pop_waiting,
    push_waiting,
    schedule_request,
)

CHUNKED = CACHES_PREFIXES = CACHES_AT_END = KV_TRANSFER = OVERLAP_SCHEDULE = True
POLL_INTERVAL = 1
OPTIONS = ("schedule_conservativeness",)

POLL_NEXT = -1
"""Value of MEMO after which the queue is polled again."""

FIRST_RATIO, LAST_RATIO, DECAY_STEPS = 0.7, 0.14, 600
"""Share of their longest output that running requests are expected to write: the first, the last
as a part of the first, and the decode iterations between."""

RETRACT_DECODE_STEPS = 20
"""Output tokens of each request that the share after a preemption adds to those written."""

MOST_NEW_TOKENS = 4096
"""Output tokens of a request that count at admission (`CLIP_MAX_NEW_TOKENS`)."""


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Continue the partial prefill, then admit new prompts; without prompts, decode all requests.

    `MEMO` counts decode iterations since the queue was last polled.
    """
    limits, pool = view.limits, view.pool
    polls = pool[at.MEMO] == POLL_NEXT or pool[at.RUNNING] == 0
    pool[at.MEMO] = 0 if polls else (pool[at.MEMO] + pool[at.ELAPSED]) % limits[at.POLL_INTERVAL]
    polls = polls or pool[at.MEMO] == 0
    decay_ratio(view, pool[at.REPEATED_ITERATIONS])
    if pool[at.NUM_RUNNING] != pool[at.BATCH_IS_FULL_AT]:
        pool[at.BATCH_IS_FULL_AT] = 0
    token_budget = continue_prefills(view)
    if polls and pool[at.BATCH_IS_FULL_AT] == 0 and has_waiting_slot(limits, pool):
        admit_prompts(view, token_budget)
    if pool[at.BATCH_SIZE] > 0:
        pool[at.MEMO] = POLL_NEXT
        return 1
    preempted = preempt_decodes(view)
    size = min(pool[at.RUNNING], limits[at.MAX_BATCH_SEQS])
    for i in range(size):
        req = view.running[i]
        append_blocks(pool, view.request, req, blocks_missing(limits, view.request, req))
        schedule_request(view, req, 1)
    keep_running(view, 0, size, pool[at.RUNNING])
    if size == 0 and pool[at.IN_FLIGHT] == 0:
        view.gauge[at.NEW_TOKEN_RATIO] = 0.0
    elif size > 0 and preempted == 0:
        decay_ratio(view, 1)
    if pool[at.RUNNING] > 0 or preempted > 0:
        pool[at.MEMO] = POLL_NEXT
        return 1
    if pool[at.WAITING] > 0 and polls:
        pool[at.MEMO] = POLL_NEXT  # received requests take the next free slots
    if limits[at.STAGES] > 1 and limits[at.POLL_INTERVAL] > 1:
        return 1
    if pool[at.WAITING] > 0 and not polls:
        return limits[at.POLL_INTERVAL] - pool[at.MEMO]  # type: ignore[no-any-return]
    return at.UNTIL_CHANGED


@kernel(f8(VIEW, i8))
def decay_ratio(view: View, steps: int) -> float:
    """Return the share of their longest output expected of requests, after some decodes more.

    A ratio of 0 is that of an idle engine, which begins anew.
    """
    first = min(FIRST_RATIO * (view.limits[at.CONSERVATIVENESS] / 1e6), 1.0)
    last = first * LAST_RATIO
    ratio = view.gauge[at.NEW_TOKEN_RATIO] or first
    while steps > 0 and ratio > last:
        ratio = max(ratio - (first - last) / DECAY_STEPS, last)
        steps -= 1
    view.gauge[at.NEW_TOKEN_RATIO] = ratio
    return ratio  # type: ignore[no-any-return]


@kernel(i8(matrix(i8), i8))
def tokens_of(request: Ints, req: int) -> int:
    """Return the tokens of prompt and output so far of a request, also a waiting one."""
    return max(request[req, at.NUM_COMPUTED], request[req, at.PROMPT])  # type: ignore[no-any-return]


@kernel(i8(matrix(i8), i8))
def to_write(request: Ints, req: int) -> int:
    """Return the output tokens that a request has yet to write."""
    return request[req, at.PROMPT] + request[req, at.OUTPUT] - tokens_of(request, req)  # type: ignore[no-any-return]


@kernel(i8(matrix(i8), i8))
def answer_of(request: Ints, req: int) -> int:
    """Return the output tokens of a request, those before a preemption included."""
    return request[req, at.PROMPT] + request[req, at.OUTPUT] - request[req, at.GIVEN_PROMPT]  # type: ignore[no-any-return]


@kernel(f8(VIEW))
def tokens_expected(view: View) -> float:
    """Return the output tokens that decodes of the running batch are expected to write."""
    expected, request = 0.0, view.request
    ratio = 1.0 if view.limits[at.IGNORE_EOS] == 1 else view.gauge[at.NEW_TOKEN_RATIO]
    for i in range(view.pool[at.RUNNING]):
        req = view.running[i]
        if request[req, at.NUM_COMPUTED] > request[req, at.PROMPT]:
            expected += min(to_write(request, req), MOST_NEW_TOKENS) * ratio
    return expected


@kernel(i8(VIEW))
def continue_prefills(view: View) -> int:
    """Schedule partial prefills; return the remaining token budget.

    A chunk has no more tokens than the expected memory, if there is any. A prefill without blocks,
    which others have taken meanwhile, is preempted.
    """
    limits, pool, request, running = view.limits, view.pool, view.request, view.running
    token_budget, kept = limits[at.TOKEN_BUDGET], 0
    for i in range(pool[at.RUNNING]):
        req = running[i]
        num_computed = request[req, at.NUM_COMPUTED]
        num_scheduled = min(request[req, at.PROMPT] - num_computed, token_budget)
        if num_scheduled <= 0:
            running[kept] = req
            kept += 1
            continue
        memory = int(pool[at.FREE_BLOCKS] * limits[at.BLOCK] - tokens_expected(view))
        num_scheduled = min(num_scheduled, memory) if memory > 0 else num_scheduled
        end = num_computed + num_scheduled
        needed = blocks_for(end, limits[at.BLOCK]) - request[req, at.BLOCKS]
        if needed > pool[at.FREE_BLOCKS]:
            preempt_last(view, req)
            continue
        append_blocks(pool, request, req, needed)
        schedule_request(view, req, num_scheduled)
        token_budget -= blocks_for(num_scheduled, limits[at.BLOCK]) * limits[at.BLOCK]
    pool[at.RUNNING] = kept
    return token_budget  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def admit_prompts(view: View, token_budget: int) -> int:
    """Admit prompts within the token budget and the expected memory; return the batch size.

    `offset` are tokens expected besides those held when the pass began; `taken` are those allocated
    since, with a block to each request. A request alone is always admitted: while no
    other one holds blocks.
    """
    limits, pool, request, running = view.limits, view.pool, view.request, view.running
    block, most = limits[at.BLOCK], 1 if limits[at.PREFILLS_ONLY] == 1 else MOST_NEW_TOKENS
    offset, taken, decodes = tokens_expected(view), 0, pool[at.RUNNING]
    for i in range(pool[at.BATCH_SIZE]):
        req, size = view.batch[i], block + blocks_for(view.tokens[i], block) * block
        taken += size
        offset += size
        if request[req, at.NUM_COMPUTED] + view.tokens[i] < request[req, at.PROMPT]:
            decodes = 0  # when a partial prefill leaves the batch, it is no longer full
        else:
            offset += min(answer_of(request, req), most)
    free = (pool[at.FREE_BLOCKS] - pool[at.BATCH_SIZE]) * block
    is_full = taken > 0 and free + taken - offset <= 0
    listed, has_cache = 0, max(limits[at.PREFIX_CACHING], limits[at.PREFILLS_ONLY])
    while not is_full and token_budget > 0 and has_waiting_slot(limits, pool):
        req = view.waiting[pool[at.WAITING_HEAD]]
        cached, answer = cached_tokens_of(view, req), min(answer_of(request, req), most)
        missing, locked = request[req, at.PROMPT] - cached, cached // block
        locked -= shared_blocks(view, req, cached)
        free = (pool[at.FREE_BLOCKS] - locked - pool[at.BATCH_SIZE]) * block
        if limits[at.IGNORE_EOS] > has_cache:
            listed = list_answer(view, listed, req)
            needed = block + blocks_for(missing, block) * block
            fits = needed <= min(free, free + taken - offset)
            fits = fits and answers_fit(view, listed, free - needed)
        else:
            needed = missing + block + min(request[req, at.OUTPUT], most)
            fits = needed < free + taken - offset
        if not fits and pool[at.FREE_BLOCKS] < pool[at.TOTAL_BLOCKS]:
            is_full = True
            break
        num_scheduled = missing
        if missing > token_budget:
            num_scheduled, answer, decodes = token_budget // block * block or token_budget, 0, 0
        blocks = blocks_for(cached + num_scheduled, block)
        if admit(view, blocks, num_scheduled, cached) == 0:
            continue
        size = block + blocks_for(num_scheduled, block) * block
        taken += size
        offset += size + answer
        token_budget -= size - block
        free = (pool[at.FREE_BLOCKS] - pool[at.BATCH_SIZE]) * block
        is_full = min(free, free + taken - offset) <= 0
    if listed > 0:
        pool[at.RUNNING] = 0
    for i in range(listed):
        if request[running[i], at.NUM_COMPUTED] > request[running[i], at.PROMPT]:
            running[pool[at.RUNNING]] = running[i]
            pool[at.RUNNING] += 1
    if is_full and decodes > 0:
        pool[at.BATCH_IS_FULL_AT] = pool[at.NUM_RUNNING]
    return pool[at.BATCH_SIZE]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8, i8))
def list_answer(view: View, listed: int, req: int) -> int:
    """Add a candidate to the list in `running`, sorted by tokens to write; return the length.

    An empty list begins with the running requests and the batch. Later candidates are listed, as in
    SGLang, before the last at latest.
    """
    running, place = view.running, listed
    if listed == 0:
        for i in range(view.pool[at.RUNNING]):
            listed = insert_answer(view, i, i, running[i])
        for i in range(view.pool[at.BATCH_SIZE]):
            listed = insert_answer(view, listed, listed, view.batch[i])
        return insert_answer(view, listed, listed, req)
    running[place] = running[place - 1]
    return insert_answer(view, listed, place - 1, req)


@kernel(i8(VIEW, i8, i8, i8))
def insert_answer(view: View, listed: int, place: int, req: int) -> int:
    """Insert a request into the list before `place`, which is sorted; return the list's length."""
    left = to_write(view.request, req)
    while place > 0 and to_write(view.request, view.running[place - 1]) > left:
        view.running[place] = view.running[place - 1]
        place -= 1
    view.running[place] = req
    return listed + 1


@kernel(boolean(VIEW, i8, i8))
def answers_fit(view: View, listed: int, free: int) -> bool:
    """Return whether a token to each unfinished request remains whenever a listed answer ends."""
    for i in range(listed):
        req = view.running[i]
        if free - to_write(view.request, req) * (listed - i) <= listed - i:
            return False
        free += tokens_of(view.request, req)
    return True


@kernel(i8(VIEW))
def preempt_decodes(view: View) -> int:
    """Preempt requests until the others have blocks for a token; return the number of preempted.

    The expected share of their outputs becomes that which the others have written, and a few
    tokens more.
    """
    limits, pool, request, running = view.limits, view.pool, view.request, view.running
    preempted, count = 0, pool[at.RUNNING]
    while count > 0:
        needed, worst = 0, 0
        for i in range(min(count, limits[at.MAX_BATCH_SEQS])):
            needed += blocks_missing(limits, request, running[i])
        if needed <= pool[at.FREE_BLOCKS]:
            break
        for i in range(1, count):
            prompt = request[running[i], at.GIVEN_PROMPT]
            least = request[running[worst], at.GIVEN_PROMPT]
            more = request[running[i], at.NUM_COMPUTED] - prompt
            more -= request[running[worst], at.NUM_COMPUTED] - least
            if more < 0 or (more == 0 and prompt >= least):
                worst = i
        preempt_last(view, running[worst])
        count, preempted = keep_running(view, worst, worst + 1, count), preempted + 1
    if preempted > 0:
        written, longest = 0, 1
        for i in range(count):
            longest += answer_of(request, running[i])
            written += answer_of(request, running[i]) - to_write(request, running[i])
        ratio = (written + RETRACT_DECODE_STEPS * count) / longest
        view.gauge[at.NEW_TOKEN_RATIO] = min(ratio, 1.0)
    return preempted


@kernel(i8(VIEW, i8))
def preempt_last(view: View, req: int) -> int:
    """Preempt a request; without space on the host it returns to the end of the queue."""
    pool, recomputed = view.pool, view.pool[at.RECOMPUTE_PREEMPTIONS]
    preempt(view, req)
    if pool[at.RECOMPUTE_PREEMPTIONS] > recomputed:
        push_waiting(pool, view.waiting, pop_waiting(pool, view.waiting))
    return pool[at.WAITING]  # type: ignore[no-any-return]
