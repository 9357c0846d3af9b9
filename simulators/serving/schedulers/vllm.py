"""Whole prompts first, else one token to every running request: vLLM before version 1.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). A batch is either prefill or decode, so a long queue of prompts stalls the requests that
are generating.
"""

from __future__ import annotations

from simulators.core.jit import i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import (
    admit,
    blocks_for,
    can_admit,
    has_free_blocks,
    preemptions,
    schedule_decodes,
)
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel, sort_by_arrival

PREFILL_FIRST = KV_TRANSFER = LIMITS_ONLY_REFUSE = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts from the head of the queue while they fit; without any, decode all requests.

    A prompt longer than the token limit is a batch of its own.
    """
    limits, pool = view.limits, view.pool
    total = 0
    while can_admit(limits, pool):
        prompt = view.request[view.waiting[pool[at.WAITING_HEAD]], at.PROMPT]
        total += prompt
        if pool[at.BATCH_SIZE] > 0 and total > limits[at.MAX_PREFILL_TOKENS]:
            break
        blocks = blocks_for(prompt, limits[at.BLOCK])
        if not has_free_blocks(limits, pool, blocks):
            break
        admit(view, blocks, prompt, 0)
    return 1 if pool[at.BATCH_SIZE] > 0 else decode_all(view)


@kernel(i8(VIEW))
def decode_all(view: View) -> int:
    """Schedule one token for every running request; return the iterations that holds."""
    pool = view.pool
    sort_by_arrival(view.request, view.running, pool[at.RUNNING])
    preempted = preemptions(pool)
    schedule_decodes(view)
    # The blocks of a preempted request may admit a prompt in the next iteration.
    return at.UNTIL_CHANGED if pool[at.RUNNING] == 0 and preemptions(pool) == preempted else 1
