"""Prefills first, in batches of their own; decodes run when no waiting request fits.

SGLang's scheduler (Zheng et al., "SGLang: efficient execution of structured language model
programs", 2024; `managers/schedule_policy.py`): `chunk_size` is its `chunked_prefill_size`. A
prompt is admitted if the expected output of the running requests also fits: a share of their
longest output, which starts at 0.7 and falls to 0.14 of that within 600 iterations; the low end is
used.

`poll_interval` is its `scheduler_recv_interval`: new requests are received after every batch of
prompts, and otherwise only every so many decode iterations (`scheduler_recv_skipper.py`), which
gathers prompts into fewer, larger batches. It counts the iterations of all pipeline stages' batches
together, so one batch's share of them is not known ahead: the stages ask after each.
"""

from __future__ import annotations

from simulators.core.jit import f8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import (
    admit,
    blocks_for,
    cached_tokens_of,
    has_waiting_slot,
    schedule_decodes,
    schedule_running,
    shared_blocks,
)
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel, sort_by_arrival

CHUNKED = CACHES_PREFIXES = KV_TRANSFER = OVERLAP_SCHEDULE = True
POLL_INTERVAL = 1

POLL_NEXT = -1
"""Value of MEMO after which the queue is polled again."""

EXPECTED = 0.7 * 0.14
"""Share of their longest output that running requests are expected to write."""


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Continue the partial prefill, then admit new prompts; without prompts, decode all requests.

    `MEMO` counts decode iterations since the queue was last polled.
    """
    limits, pool = view.limits, view.pool
    polls = pool[at.MEMO] == POLL_NEXT or pool[at.RUNNING] == 0
    pool[at.MEMO] = 0 if polls else (pool[at.MEMO] + pool[at.ELAPSED]) % limits[at.POLL_INTERVAL]
    polls = polls or pool[at.MEMO] == 0
    token_budget = schedule_running(view, limits[at.TOKEN_BUDGET], True)
    expected = expected_blocks(view)
    while polls and token_budget > 0 and has_waiting_slot(limits, pool):
        req = view.waiting[pool[at.WAITING_HEAD]]
        prompt, cached = view.request[req, at.PROMPT], cached_tokens_of(view, req)
        blocks = blocks_for(prompt, limits[at.BLOCK])
        taken = blocks - shared_blocks(view, req, cached)
        if pool[at.FREE_BLOCKS] - taken < expected and pool[at.NUM_RUNNING] > 0:
            break
        num_scheduled = min(prompt - cached, token_budget)
        admit(view, blocks, num_scheduled, cached)
        token_budget -= num_scheduled
    if pool[at.BATCH_SIZE] > 0:
        pool[at.MEMO] = POLL_NEXT
        return 1
    sort_by_arrival(view.request, view.running, pool[at.RUNNING])
    restarts = pool[at.RECOMPUTE_PREEMPTIONS]
    schedule_decodes(view)
    # The expected blocks of decodes fall with every token, free blocks only with every block: a
    # waiting request may be admitted between two blocks.
    may_admit_soon = (
        polls and pool[at.WAITING] > 0 and pool[at.NUM_RUNNING] < limits[at.MAX_NUM_SEQS]
    )
    if pool[at.RUNNING] > 0 or pool[at.RECOMPUTE_PREEMPTIONS] > restarts or may_admit_soon:
        pool[at.MEMO] = POLL_NEXT
        return 1
    if pool[at.WAITING] > 0 and polls:
        pool[at.MEMO] = POLL_NEXT  # received requests take the next free slots
    if limits[at.STAGES] > 1 and limits[at.POLL_INTERVAL] > 1:
        return 1
    if pool[at.WAITING] > 0 and not polls:
        return limits[at.POLL_INTERVAL] - pool[at.MEMO]  # type: ignore[no-any-return]
    return at.UNTIL_CHANGED


@kernel(f8(VIEW))
def expected_blocks(view: View) -> float:
    """Return the blocks that running requests are expected to allocate."""
    request, tokens = view.request, 0
    for i in range(view.pool[at.RUNNING]):
        req = view.running[i]
        tokens += request[req, at.PROMPT] + request[req, at.OUTPUT] - request[req, at.NUM_COMPUTED]
    return EXPECTED * tokens / view.limits[at.BLOCK]  # type: ignore[no-any-return]
