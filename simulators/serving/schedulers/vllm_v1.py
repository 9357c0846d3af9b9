"""One token budget for all: running requests first, whatever their phase, then the queue.

vLLM since version 1 (`vllm/v1/core/sched/scheduler.py`): `chunk_size` is its
`max_num_batched_tokens`. A prompt takes what the budget leaves and blocks for those tokens only.
Without a free block the request admitted last is preempted, and no request is admitted in this
iteration; while batches in flight hold the memory, the request waits for them. Cached tokens of a
prompt are not computed, also after a preemption.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import (
    admit_chunks,
    append_blocks,
    blocks_for,
    blocks_missing,
    is_last_token_in_flight,
    preempt,
    preemptions,
    prefill_tokens,
)
from simulators.serving.engine.replica import (
    SCHEDULE,
    View,
    keep_running,
    kernel,
    schedule_request,
    sort_by_arrival,
)

CHUNKED = CACHES_PREFIXES = KV_TRANSFER = DRAFTS_BEYOND_END = LIMITS_ONLY_REFUSE = True
WATERMARK = 0.0
OPTIONS = ("scheduler_reserve_full_isl", "long_prefill_token_threshold")
BLOCK_DROP_METHODS = ("eagle", "eagle3", "mtp")
LOOKAHEAD_METHODS = (*BLOCK_DROP_METHODS, "draft")
ASYNC_METHODS = ("nothing", *LOOKAHEAD_METHODS)


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Schedule running requests in the order of admission, then the queue, within the budget.

    `MEMO` counts admissions; the ARRIVAL_ORDER of a request becomes the number of its admission.
    """
    limits, pool, request, running = view.limits, view.pool, view.request, view.running
    token_budget, prefills, preempted = limits[at.TOKEN_BUDGET], 0, preemptions(pool)
    sort_by_arrival(request, running, pool[at.RUNNING])
    head, count, kept, waits = 0, pool[at.RUNNING], 0, False
    lookahead, is_async = limits[at.NUM_LOOKAHEAD_TOKENS], limits[at.ASYNC_SCHEDULING] == 1
    while head < count and token_budget > 0 and pool[at.BATCH_SIZE] < limits[at.MAX_BATCH_SEQS]:
        req = running[head]
        head += 1
        num_computed, prompt = request[req, at.NUM_COMPUTED], request[req, at.PROMPT]
        if is_async and is_last_token_in_flight(request, req):
            running[kept] = req
            kept += 1
            continue
        num_scheduled, needed = 1, blocks_missing(limits, request, req)
        if num_computed <= prompt:
            num_scheduled = min(prefill_tokens(limits, pool, prompt - num_computed), token_budget)
            end = num_computed + num_scheduled + lookahead
            needed = blocks_for(end, limits[at.BLOCK]) - request[req, at.BLOCKS]
        while pool[at.FREE_BLOCKS] < needed and head < count:
            count -= 1
            preempt(view, running[count])
        if pool[at.FREE_BLOCKS] < needed and pool[at.IN_FLIGHT] > 0 and not is_async:
            head, waits = head - 1, True  # the last of the requests in flight will be preempted
            break
        if pool[at.FREE_BLOCKS] < needed:
            preempt(view, req)
            continue
        append_blocks(pool, request, req, needed)
        schedule_request(view, req, num_scheduled)
        token_budget -= num_scheduled
        if num_computed > prompt:
            token_budget -= pool[at.NUM_DRAFTS]
        prefills += 1 if num_computed <= prompt else 0
    keep_running(view, kept, head, count)
    if waits or preemptions(pool) > preempted:
        return 1
    first = pool[at.BATCH_SIZE]
    admit_chunks(view, token_budget, False)
    for i in range(first, pool[at.BATCH_SIZE]):
        request[view.batch[i], at.ARRIVAL_ORDER] = pool[at.MEMO]
        pool[at.MEMO] += 1
    loading = pool[at.LAST_LOADING]
    for _ in range(pool[at.NUM_LOADING]):
        request[loading, at.ARRIVAL_ORDER] = pool[at.MEMO]
        pool[at.MEMO] += 1
        loading = request[loading, at.SWAPPED_BEFORE]
    prefills += pool[at.BATCH_SIZE] - first
    return at.UNTIL_CHANGED if prefills == 0 and pool[at.RUNNING] == kept else 1
