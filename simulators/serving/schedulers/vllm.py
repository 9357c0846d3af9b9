"""Whole prompts first, else one token to every running request: vLLM before version 1.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). A batch is either prefill or decode, so a long queue of prompts stalls the requests that
are generating.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit, may_admit
from simulators.serving.engine.kv_cache import blocks_for, fits, preemptions, seat_decodes
from simulators.serving.engine.replica import SCHEDULE, View, kernel, sort_by_arrival

WHOLE_FIRST = TAKES_UP = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts from the head of the queue while they fit; none taken: decode all.

    A prompt longer than the token limit travels alone. VIDUR counts a batch's tokens as if every
    prompt were padded to the longest.
    """
    limits, pool = view.limits, view.pool
    longest, total = 0, 0
    while may_admit(limits, pool):
        prompt = view.request[view.waiting[pool[at.HEAD]], at.PROMPT]
        longest, total = max(longest, prompt), total + prompt
        counted = (pool[at.BATCH] + 1) * longest if limits[at.PARITY] == 1 else total
        if pool[at.BATCH] > 0 and counted > limits[at.BATCH_TOKENS]:
            break
        blocks = blocks_for(prompt, limits[at.BLOCK])
        if not fits(limits, pool, blocks):
            break
        admit(view, blocks, prompt, 0)
    if pool[at.BATCH] > 0:
        return 1
    sort_by_arrival(view.request, view.idle, pool[at.IDLE])
    preempted = preemptions(pool)
    seat_decodes(view)
    # What a preempted request has freed may let a prompt in at the next look at the queue.
    return at.FOREVER if pool[at.IDLE] == 0 and preemptions(pool) == preempted else 1
