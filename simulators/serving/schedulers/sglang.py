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

from simulators.core.jit import f8
from simulators.serving.engine.admission import admit, continue_prompts, finds_seat
from simulators.serving.engine.kv_cache import blocks_for, seat_decodes
from simulators.serving.engine.replica import (
    BATCH,
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
    VIEW,
    WAITING,
    View,
    kernel,
    sort_by_arrival,
)

CHUNKED = True
POLL_INTERVAL = 1

AT_ONCE = -1
"""Memo of a decision after which the queue is looked at again."""

EXPECTED = 0.7 * 0.14
"""Share of their longest output that running requests are expected to write."""


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Continue the prompt that was cut, then take new ones; with none of either, decode all.

    `MEMO` counts decode iterations since the queue was last looked at.
    """
    limits, pool = view.limits, view.pool
    looks = pool[MEMO] == AT_ONCE or pool[IDLE] == 0
    pool[MEMO] = 0 if looks else (pool[MEMO] + pool[ELAPSED]) % limits[PATIENCE]
    looks = looks or pool[MEMO] == 0
    left = continue_prompts(view, limits[CHUNK])
    expected = expected_blocks(view)
    while looks and left > 0 and finds_seat(limits, pool):
        prompt = view.request[view.waiting[pool[HEAD]], PROMPT]
        blocks = blocks_for(prompt, limits[BLOCK])
        if pool[FREE] - blocks < expected and pool[HOLDERS] > 0:
            break
        granted = min(prompt, left)
        admit(view, blocks, granted)
        left -= granted
    if pool[BATCH] > 0:
        pool[MEMO] = AT_ONCE
        return 1
    sort_by_arrival(view.request, view.idle, pool[IDLE])
    restarts = pool[RESTARTED]
    seat_decodes(view)
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


@kernel(f8(VIEW))
def expected_blocks(view: View) -> float:
    """Return the blocks that those who decode are expected to take yet."""
    request, tokens = view.request, 0
    for i in range(view.pool[IDLE]):
        who = view.idle[i]
        tokens += request[who, PROMPT] + request[who, OUTPUT] - request[who, DONE]
    return EXPECTED * tokens / view.limits[BLOCK]  # type: ignore[no-any-return]
