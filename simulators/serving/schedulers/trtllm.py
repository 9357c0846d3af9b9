"""In-flight batching without eviction: admitted requests are never preempted.

TensorRT-LLM's in-flight batching under its default capacity policy, GUARANTEED_NO_EVICT: a request
enters when the blocks of its prompt and of its longest output are free, and keeps them.
`chunk_size` is `max_num_tokens`: decodes take one each, whole prompts what is left; a prompt that
could never fit whole is chunked. The memory fraction refers to what weights and activations leave.
Under attention data parallelism one queue is distributed over the ranks in every iteration.

Its overlap scheduler is `async_scheduling`: a batch is formed while the one before runs, and a
request whose last token is in flight is not scheduled again (`GENERATION_TO_COMPLETE`).

`poll_interval` is its `batch_wait_timeout_iters`: while others decode, new prompts wait until they
and the decodes fill `FILLED` of the tokens (`batch_wait_max_tokens_ratio`), so many iterations at
most.
"""

from __future__ import annotations

from simulators.core.jit import i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import (
    admit,
    blocks_for,
    cached_tokens_of,
    has_waiting_slot,
    schedule_running,
    shared_blocks,
)
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel

CHUNKED = CACHES_PREFIXES = KV_TRANSFER = True
FRACTION_OF_FREE = SHARED_RANK_QUEUE = RESERVES_OUTPUT = True
POLL_INTERVAL = 1
ASYNC_METHODS = ("nothing",)

FILLED = 0.9
"""Share of the tokens, as public recipes ask for."""


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Schedule decodes, then partial prefills, then whole prompts within the token budget.

    `MEMO` counts the iterations for which prompts were delayed.
    """
    limits, pool, request = view.limits, view.pool, view.request
    token_budget = schedule_running(view, limits[at.TOKEN_BUDGET], False)
    decodes = pool[at.BATCH_SIZE]
    token_budget = schedule_running(view, token_budget, True)
    running = pool[at.BATCH_SIZE]
    polls = limits[at.POLL_INTERVAL] > 1 and pool[at.WAITING] > 0
    if polls and decodes > 0 and pool[at.MEMO] < limits[at.POLL_INTERVAL]:
        tokens = limits[at.TOKEN_BUDGET] - token_budget + waiting_tokens(view)
        if tokens < FILLED * limits[at.TOKEN_BUDGET]:
            pool[at.MEMO] += 1
            return 1
    pool[at.MEMO] = 0
    while token_budget > 0 and has_waiting_slot(limits, pool):
        req = view.waiting[pool[at.WAITING_HEAD]]
        prompt, cached = request[req, at.PROMPT], cached_tokens_of(view, req)
        alone, missing = pool[at.BATCH_SIZE] == running, prompt - cached
        if missing > token_budget and not (alone and missing + running > limits[at.TOKEN_BUDGET]):
            break
        life = prompt + limits[at.RESERVES_OUTPUT] * request[req, at.OUTPUT]
        blocks = blocks_for(life, limits[at.BLOCK])
        if pool[at.FREE_BLOCKS] < blocks - shared_blocks(view, req, cached):
            break
        token_budget -= admit(view, blocks, min(missing, token_budget), cached)
    holds = pool[at.BATCH_SIZE] == decodes and pool[at.RUNNING] == 0 and not polls
    return at.UNTIL_CHANGED if holds else 1


@kernel(i8(VIEW))
def waiting_tokens(view: View) -> int:
    """Return the prompt tokens in the queue, up to a full iteration."""
    pool, waiting, tokens = view.pool, view.waiting, 0
    for i in range(pool[at.WAITING]):
        if tokens >= view.limits[at.TOKEN_BUDGET]:
            break
        tokens += view.request[waiting[(pool[at.WAITING_HEAD] + i) & (waiting.size - 1)], at.PROMPT]
    return tokens
