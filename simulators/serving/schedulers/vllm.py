"""Whole prompts first, else one token to every running request: vLLM before version 1.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). A batch is either prefill or decode, so a long queue of prompts stalls the requests that
are generating.
"""

from __future__ import annotations

from simulators.core.jit import i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit, may_admit
from simulators.serving.engine.kv_cache import blocks_for, fits, preemptions, seat_decodes
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel, sort_by_arrival

WHOLE_FIRST = TAKES_UP = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts from the head of the queue while they fit; none taken: decode all.

    A prompt longer than the token limit travels alone.
    """
    limits, pool = view.limits, view.pool
    total = 0
    while may_admit(limits, pool):
        prompt = view.request[view.waiting[pool[at.HEAD]], at.PROMPT]
        total += prompt
        if pool[at.BATCH] > 0 and total > limits[at.BATCH_TOKENS]:
            break
        blocks = blocks_for(prompt, limits[at.BLOCK])
        if not fits(limits, pool, blocks):
            break
        admit(view, blocks, prompt, 0)
    return 1 if pool[at.BATCH] > 0 else decode_all(view)


@kernel(i8(VIEW))
def decode_all(view: View) -> int:
    """Schedule one token for every running request; return the iterations that holds."""
    pool = view.pool
    sort_by_arrival(view.request, view.idle, pool[at.IDLE])
    preempted = preemptions(pool)
    seat_decodes(view)
    # What a preempted request has freed may let a prompt in at the next look at the queue.
    return at.FOREVER if pool[at.IDLE] == 0 and preemptions(pool) == preempted else 1
