"""A prompt is admitted only if all running requests can then finish without preemption.

LightLLM's token attention: memory is counted in single tokens. With the requests sorted by their
remaining tokens, memory use is highest when one of them ends; the sum must fit at each such moment.
The queue is polled when nothing runs, or every few decode iterations.
"""

from __future__ import annotations

from simulators.core.jit import i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import admit, can_admit, preemptions, schedule_decodes
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel

REQUIRES = {"cache.block_size": 1, "pp": 1}
POLL_INTERVAL = 10


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts when the queue is polled; otherwise decode all running requests.

    `MEMO` counts decode iterations since the queue was last polled.
    """
    pool, interval = view.pool, view.limits[at.POLL_INTERVAL]
    if pool[at.RUNNING] == 0:
        pool[at.MEMO] = 0
        admit_if_all_finish(view)
        return 1
    pool[at.MEMO] += max(pool[at.ELAPSED] - 1, 0)
    if pool[at.MEMO] >= interval:
        pool[at.MEMO] = 0
        if admit_if_all_finish(view) > 0:
            return 1
    pool[at.MEMO] += 1
    preempted = preemptions(pool)
    schedule_decodes(view)
    if pool[at.RUNNING] > 0 or preemptions(pool) > preempted:
        return 1
    return interval - pool[at.MEMO] + 1  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def admit_if_all_finish(view: View) -> int:
    """Admit prompts while all running requests can finish; return the batch size."""
    limits, pool = view.limits, view.pool
    total = 0
    while can_admit(limits, pool):
        req = view.waiting[pool[at.WAITING_HEAD]]
        prompt = view.request[req, at.PROMPT]
        total += prompt
        if total > limits[at.MAX_PREFILL_TOKENS] and pool[at.BATCH_SIZE] > 0:
            break
        view.batch[pool[at.BATCH_SIZE]] = req
        if most_used(view) >= pool[at.TOTAL_BLOCKS]:
            break
        admit(view, prompt, prompt, 0)
    return pool[at.BATCH_SIZE]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def most_used(view: View) -> int:
    """Return the most tokens ever held if the candidate after the batch is admitted.

    When a request with `remaining` tokens ends, all requests with at least as many remaining tokens
    hold their present tokens and `remaining` more each.
    """
    request, running, most = view.request, view.pool[at.RUNNING], 0
    count = running + view.pool[at.BATCH_SIZE] + 1
    for i in range(count):
        remaining = to_go(view, member(view, i))
        held, others = 0, 0
        for j in range(count):
            req = member(view, j)
            if to_go(view, req) >= remaining:
                held += max(request[req, at.NUM_COMPUTED], request[req, at.PROMPT] + 1)
                others += 1
        most = max(most, remaining * others + held)
    return most


@kernel(i8(VIEW, i8))
def member(view: View, place: int) -> int:
    """Return the request at a place: running requests first, then the new batch."""
    running = view.pool[at.RUNNING]
    return view.running[place] if place < running else view.batch[place - running]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def to_go(view: View, req: int) -> int:
    """Return the output tokens for which a request still needs memory."""
    request = view.request
    generated = max(request[req, at.NUM_COMPUTED] - request[req, at.PROMPT], 1)
    return max(request[req, at.OUTPUT] - generated - 1, 0)  # type: ignore[no-any-return]
