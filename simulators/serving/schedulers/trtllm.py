"""Prompts join the running decodes, and nobody is let in who might have to be put out again.

TensorRT-LLM's in-flight batching under its default capacity policy, GUARANTEED_NO_EVICT: a request
enters when the blocks of its prompt and of its longest output are free, and keeps them.
`chunk_size` is `max_num_tokens`: decodes take one each, whole prompts what is left; a prompt that
could never fit whole is cut. The memory fraction is one of what weights and activations leave.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints, arrays, i8, matrix
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.kv_cache import allocate, blocks_for
from simulators.serving.engine.replica import (
    BATCH,
    BATCH_SEATS,
    BLOCK,
    CHUNK,
    DONE,
    FOREVER,
    FREE,
    HEAD,
    HOLDERS,
    IDLE,
    OUTPUT,
    PROMPT,
    SCHEDULE,
    SEATS,
    WAITING,
    pop_waiting,
    seat,
)

CHUNKED = OF_REST = True


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
    """One token to each decode, then prompts that were cut, then whole ones while tokens last."""
    left = seat_running(limits, pool, request, idle, batch, tokens)
    decodes = pool[BATCH]
    while (
        pool[WAITING] > 0
        and left > 0
        and pool[HOLDERS] < limits[SEATS]
        and pool[BATCH] < limits[BATCH_SEATS]
    ):
        who = waiting[pool[HEAD]]
        prompt = request[who, PROMPT]
        alone = pool[BATCH] == decodes
        if prompt > left and not (alone and prompt + decodes > limits[CHUNK]):
            break
        blocks = blocks_for(prompt + request[who, OUTPUT], limits[BLOCK])
        if pool[FREE] < blocks:
            break
        pop_waiting(pool, waiting)
        allocate(pool, request, who, blocks)
        granted = min(prompt, left)
        seat(pool, batch, tokens, who, granted)
        left -= granted
    return FOREVER if pool[BATCH] == decodes and left == limits[CHUNK] - decodes else 1


@kernel(i8(*arrays(i8, 2), matrix(i8), *arrays(i8, 3)))
def seat_running(
    limits: Ints, pool: Ints, request: Ints, idle: Ints, batch: Ints, tokens: Ints
) -> int:
    """Seat decodes and prompts that were cut; return the tokens left for others."""
    left = limits[CHUNK]
    for is_prompt in range(2):
        kept = 0
        for i in range(pool[IDLE]):
            who = idle[i]
            missing = request[who, PROMPT] - request[who, DONE]
            if left > 0 and (missing > 0) == (is_prompt == 1):
                granted = min(missing, left) if missing > 0 else 1
                seat(pool, batch, tokens, who, granted)
                left -= granted
            else:
                idle[kept] = who
                kept += 1
        pool[IDLE] = kept
    return left  # type: ignore[no-any-return]
