"""One token budget for all: running requests first, whatever their phase, then the queue.

vLLM since version 1 (`vllm/v1/core/sched/scheduler.py`): `chunk_size` is its
`max_num_batched_tokens`. A prompt takes what the budget leaves and blocks for those tokens only.
Without a free block the request admitted last is preempted, and then nobody is admitted in this
iteration; while batches in flight hold the memory, the request waits for them. What is found of a
prompt in the prefix cache is not computed, be it another's beginning or its own before preemption.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit_chunks
from simulators.serving.engine.kv_cache import (
    blocks_for,
    blocks_missing,
    extend,
    preempt,
    preemptions,
)
from simulators.serving.engine.replica import (
    SCHEDULE,
    View,
    keep_idle,
    kernel,
    schedule_request,
    sort_by_arrival,
)

CHUNKED = CACHES_PREFIXES = TAKES_UP = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Give the budget to running requests in the order of admission, the rest to the queue.

    `MEMO` counts admissions; a request's rank becomes the number of its own.
    """
    limits, pool, request, idle = view.limits, view.pool, view.request, view.idle
    left, prefills, preempted = limits[at.CHUNK], 0, preemptions(pool)
    sort_by_arrival(request, idle, pool[at.IDLE])
    head, count, waits = 0, pool[at.IDLE], False
    while head < count and left > 0 and pool[at.BATCH] < limits[at.BATCH_SEATS]:
        who = idle[head]
        head += 1
        done, prompt = request[who, at.DONE], request[who, at.PROMPT]
        granted = 1 if done > prompt else min(prompt - done, left)
        needed = blocks_missing(limits, request, who)
        if done <= prompt:
            needed = blocks_for(done + granted, limits[at.BLOCK]) - request[who, at.BLOCKS]
        while pool[at.FREE] < needed and head < count:
            count -= 1
            preempt(view, idle[count])
        if pool[at.FREE] < needed and pool[at.FLIGHT] > 0:
            head, waits = head - 1, True  # those in flight come back, the last to be preempted
            break
        if pool[at.FREE] < needed:
            preempt(view, who)
            continue
        extend(pool, request, who, needed)
        schedule_request(view, who, granted)
        left -= granted
        if done > prompt:
            left -= pool[at.DRAFTS]
        prefills += 1 if done <= prompt else 0
    keep_idle(view, 0, head, count)
    if waits or preemptions(pool) > preempted:
        return 1
    first = pool[at.BATCH]
    admit_chunks(view, left, False)
    for i in range(first, pool[at.BATCH]):
        request[view.batch[i], at.RANK] = pool[at.MEMO]
        pool[at.MEMO] += 1
    prefills += pool[at.BATCH] - first
    return at.FOREVER if prefills == 0 and pool[at.IDLE] == 0 else 1
