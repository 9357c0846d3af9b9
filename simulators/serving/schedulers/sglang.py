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
from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import (
    admit,
    continue_idle,
    finds_seat,
    found_of,
    shared_by,
)
from simulators.serving.engine.kv_cache import blocks_for, seat_decodes
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel, sort_by_arrival

CHUNKED = CACHES_PREFIXES = TAKES_UP = OVERLAPS = True
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
    looks = pool[at.MEMO] == AT_ONCE or pool[at.IDLE] == 0
    pool[at.MEMO] = 0 if looks else (pool[at.MEMO] + pool[at.ELAPSED]) % limits[at.PATIENCE]
    looks = looks or pool[at.MEMO] == 0
    left = continue_idle(view, limits[at.CHUNK], True)
    expected = expected_blocks(view)
    while looks and left > 0 and finds_seat(limits, pool):
        who = view.waiting[pool[at.HEAD]]
        prompt, cached = view.request[who, at.PROMPT], found_of(view, who)
        blocks = blocks_for(prompt, limits[at.BLOCK])
        taken = blocks - shared_by(view, who, cached)
        if pool[at.FREE] - taken < expected and pool[at.HOLDERS] > 0:
            break
        granted = min(prompt - cached, left)
        admit(view, blocks, granted, cached)
        left -= granted
    if pool[at.BATCH] > 0:
        pool[at.MEMO] = AT_ONCE
        return 1
    sort_by_arrival(view.request, view.idle, pool[at.IDLE])
    restarts = pool[at.RESTARTED]
    seat_decodes(view)
    # What decodes are expected to take falls with every token, free blocks only with every block:
    # whoever waits for memory may find it between two blocks.
    hopeful = looks and pool[at.WAITING] > 0 and pool[at.HOLDERS] < limits[at.SEATS]
    if pool[at.IDLE] > 0 or pool[at.RESTARTED] > restarts or hopeful:
        pool[at.MEMO] = AT_ONCE
        return 1
    if pool[at.WAITING] > 0 and looks:
        pool[at.MEMO] = AT_ONCE  # they were received, and take the next free seats
    if limits[at.STAGES] > 1 and limits[at.PATIENCE] > 1:
        return 1
    if pool[at.WAITING] > 0 and not looks:
        return limits[at.PATIENCE] - pool[at.MEMO]  # type: ignore[no-any-return]
    return at.FOREVER


@kernel(f8(VIEW))
def expected_blocks(view: View) -> float:
    """Return the blocks that those who decode are expected to take yet."""
    request, tokens = view.request, 0
    for i in range(view.pool[at.IDLE]):
        who = view.idle[i]
        tokens += request[who, at.PROMPT] + request[who, at.OUTPUT] - request[who, at.DONE]
    return EXPECTED * tokens / view.limits[at.BLOCK]  # type: ignore[no-any-return]
