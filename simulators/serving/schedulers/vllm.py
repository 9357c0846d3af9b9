"""Whole prompts first, else one token to every running request: vLLM before version 1.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). A batch is either prefill or decode, so a long queue of prompts stalls the requests that
are generating.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.kernel import kernel
from simulators.serving.kv_cache import allocate, blocks_for, fits, seat_decodes
from simulators.serving.replica import (
    BATCH,
    BATCH_SEATS,
    BATCH_TOKENS,
    BLOCK,
    FOREVER,
    HEAD,
    HOLDERS,
    IDLE,
    PARITY,
    PROMPT,
    RESTARTED,
    SCHEDULE,
    SEATS,
    WAITING,
    pop_waiting,
    seat,
    sort_by_arrival,
)


@kernel(SCHEDULE)
def schedule(
    _now: float,
    limits: Ints,
    pool: Ints,
    request: Ints,
    _times: Floats,
    waiting: Ints,
    idle: Ints,
    batch: Ints,
    tokens: Ints,
) -> int:
    """Admit prompts from the head of the queue while they fit; none taken: decode all.

    A prompt longer than the token limit travels alone. VIDUR counts a batch's tokens as if every
    prompt were padded to the longest.
    """
    longest, total = 0, 0
    while pool[WAITING] > 0 and pool[HOLDERS] < limits[SEATS] and pool[BATCH] < limits[BATCH_SEATS]:
        prompt = request[waiting[pool[HEAD]], PROMPT]
        longest, total = max(longest, prompt), total + prompt
        counted = (pool[BATCH] + 1) * longest if limits[PARITY] == 1 else total
        if pool[BATCH] > 0 and counted > limits[BATCH_TOKENS]:
            break
        blocks = blocks_for(prompt, limits[BLOCK])
        if not fits(limits, pool, blocks):
            break
        who = pop_waiting(pool, waiting)
        allocate(pool, request, who, blocks)
        seat(pool, batch, tokens, who, prompt)
    if pool[BATCH] > 0:
        return 1
    sort_by_arrival(request, idle, pool[IDLE])
    restarts = pool[RESTARTED]
    seat_decodes(limits, pool, request, waiting, idle, batch, tokens)
    # What a restart has freed may let a prompt in at the next look at the queue.
    return FOREVER if pool[IDLE] == 0 and pool[RESTARTED] == restarts else 1
