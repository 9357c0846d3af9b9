"""Prompts first, in batches of their own; decodes run when nobody waits or nobody else fits.

SGLang's scheduler (Zheng et al., "SGLang: efficient execution of structured language model
programs", 2024; `managers/schedule_policy.py`): `chunk_size` is its `chunked_prefill_size`. A
prompt is let in if what the running requests are still expected to write also fits: a share of what
they may write, which starts at 0.7 and falls to 0.14 of that within 600 iterations; the low end is
used.

`poll_interval` is its `scheduler_recv_interval`: new requests are received after every batch of
prompts, and otherwise only every so many decode iterations (`scheduler_recv_skipper.py`), which
gathers prompts into fewer, larger batches. It counts the iterations of all pipeline stages' batches
together, so one batch's share of them is not known ahead: the stages ask after each.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints, arrays, f8, i8, matrix
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.kv_cache import allocate, blocks_for, seat_decodes
from simulators.serving.engine.replica import (
    BATCH,
    BATCH_SEATS,
    BLOCK,
    CHUNK,
    DONE,
    ELAPSED,
    FOREVER,
    FREE,
    HEAD,
    HOLDERS,
    IDLE,
    MEMO,
    OUTPUT,
    PATIENCE,
    PROMPT,
    RESTARTED,
    SCHEDULE,
    SEATS,
    STAGES,
    WAITING,
    pop_waiting,
    seat,
    sort_by_arrival,
)

CHUNKED = True
POLL_INTERVAL = 1

AT_ONCE = -1
"""Memo of a decision after which the queue is looked at again."""

EXPECTED = 0.7 * 0.14
"""Share of their longest output that running requests are expected to write."""


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
    """Continue the prompt that was cut, then take new ones; with none of either, decode all.

    `MEMO` counts decode iterations since the queue was last looked at.
    """
    looks = pool[MEMO] == AT_ONCE or pool[IDLE] == 0
    pool[MEMO] = 0 if looks else (pool[MEMO] + pool[ELAPSED]) % limits[PATIENCE]
    looks = looks or pool[MEMO] == 0
    left = continue_prompts(limits, pool, request, idle, batch, tokens)
    expected = expected_blocks(limits, pool, request, idle)
    while (
        looks
        and pool[WAITING] > 0
        and left > 0
        and pool[HOLDERS] < limits[SEATS]
        and pool[BATCH] < limits[BATCH_SEATS]
    ):
        prompt = request[waiting[pool[HEAD]], PROMPT]
        blocks = blocks_for(prompt, limits[BLOCK])
        if pool[FREE] - blocks < expected and pool[HOLDERS] > 0:
            break
        who = pop_waiting(pool, waiting)
        allocate(pool, request, who, blocks)
        granted = min(prompt, left)
        seat(pool, batch, tokens, who, granted)
        left -= granted
    if pool[BATCH] > 0:
        pool[MEMO] = AT_ONCE
        return 1
    sort_by_arrival(request, idle, pool[IDLE])
    restarts = pool[RESTARTED]
    seat_decodes(limits, pool, request, waiting, idle, batch, tokens)
    # What decodes are expected to take falls with every token, free blocks only with every block:
    # whoever waits for memory may find it between two blocks.
    hopeful = looks and pool[WAITING] > 0 and pool[HOLDERS] < limits[SEATS]
    if pool[IDLE] > 0 or pool[RESTARTED] > restarts or hopeful:
        pool[MEMO] = AT_ONCE
        return 1
    if pool[WAITING] > 0 and looks:
        pool[MEMO] = AT_ONCE  # they were received, and take the next free seats
    if limits[STAGES] > 1 and limits[PATIENCE] > 1:
        return 1
    if pool[WAITING] > 0 and not looks:
        return limits[PATIENCE] - pool[MEMO]  # type: ignore[no-any-return]
    return FOREVER


@kernel(i8(*arrays(i8, 2), matrix(i8), *arrays(i8, 3)))
def continue_prompts(
    limits: Ints, pool: Ints, request: Ints, idle: Ints, batch: Ints, tokens: Ints
) -> int:
    """Seat requests whose prompt was cut; return the tokens left for others."""
    left, kept = limits[CHUNK], 0
    for i in range(pool[IDLE]):
        who = idle[i]
        missing = request[who, PROMPT] - request[who, DONE]
        if missing > 0 and left > 0:
            granted = min(missing, left)
            seat(pool, batch, tokens, who, granted)
            left -= granted
        else:
            idle[kept] = who
            kept += 1
    pool[IDLE] = kept
    return left  # type: ignore[no-any-return]


@kernel(f8(*arrays(i8, 2), matrix(i8), *arrays(i8, 1)))
def expected_blocks(limits: Ints, pool: Ints, request: Ints, idle: Ints) -> float:
    """Return the blocks that those who decode are expected to take yet."""
    tokens = 0
    for i in range(pool[IDLE]):
        who = idle[i]
        tokens += request[who, PROMPT] + request[who, OUTPUT] - request[who, DONE]
    return EXPECTED * tokens / limits[BLOCK]  # type: ignore[no-any-return]
