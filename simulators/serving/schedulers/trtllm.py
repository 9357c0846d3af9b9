"""Prompts join the running decodes, and nobody is let in who might have to be put out again.

TensorRT-LLM's in-flight batching under its default capacity policy, GUARANTEED_NO_EVICT: a request
enters when the blocks of its prompt and of its longest output are free, and keeps them.
`chunk_size` is `max_num_tokens`: decodes take one each, whole prompts what is left; a prompt that
could never fit whole is cut. The memory fraction is one of what weights and activations leave.
Under attention data parallelism one queue is dealt out to the ranks by their load, each iteration.

`poll_interval` is its `batch_wait_timeout_iters`: while others decode, new prompts wait until they
and the decodes fill `FILLED` of the tokens (`batch_wait_max_tokens_ratio`), so many iterations at
most.
"""

from __future__ import annotations

from simulators.core.jit import i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import (
    admit,
    continue_idle,
    finds_seat,
    found_of,
    shared_by,
)
from simulators.serving.engine.kv_cache import blocks_for
from simulators.serving.engine.replica import SCHEDULE, VIEW, View, kernel

CHUNKED = OF_REST = DEALS_OUT = CACHES_PREFIXES = LIFELONG = TAKES_UP = True
POLL_INTERVAL = 1

FILLED = 0.9
"""Share of the tokens, as public recipes ask for."""


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """One token to each decode, then prompts that were cut, then whole ones while tokens last.

    `MEMO` is one more than the iterations that prompts were kept waiting, 0 if none was.
    """
    limits, pool, request = view.limits, view.pool, view.request
    left = continue_idle(view, limits[at.CHUNK], False)
    decodes = pool[at.BATCH]
    left = continue_idle(view, left, True)
    running = pool[at.BATCH]
    if limits[at.PATIENCE] > 1:
        waited = pool[at.MEMO] - 1 + pool[at.ELAPSED] if pool[at.MEMO] > 0 else 0
        waits = pool[at.WAITING] > 0 and decodes > 0 and waited < limits[at.PATIENCE]
        pool[at.MEMO] = 0
        if waits and limits[at.CHUNK] - left + waiting_tokens(view) < FILLED * limits[at.CHUNK]:
            pool[at.MEMO] = waited + 1
            return limits[at.PATIENCE] - waited if running == decodes else 1
    while left > 0 and finds_seat(limits, pool):
        who = view.waiting[pool[at.HEAD]]
        prompt, cached = request[who, at.PROMPT], found_of(view, who)
        alone, missing = pool[at.BATCH] == running, prompt - cached
        if missing > left and not (alone and missing + running > limits[at.CHUNK]):
            break
        life = prompt + limits[at.LIFELONG] * request[who, at.OUTPUT]
        blocks = blocks_for(life, limits[at.BLOCK])
        if pool[at.FREE] < blocks - shared_by(view, who, cached):
            break
        granted = min(missing, left)
        admit(view, blocks, granted, cached)
        left -= granted
    return at.FOREVER if pool[at.BATCH] == decodes and pool[at.IDLE] == 0 else 1


@kernel(i8(VIEW))
def waiting_tokens(view: View) -> int:
    """Return the prompt tokens in the queue, up to what fills an iteration."""
    pool, waiting, tokens = view.pool, view.waiting, 0
    for i in range(pool[at.WAITING]):
        if tokens >= view.limits[at.CHUNK]:
            break
        tokens += view.request[waiting[(pool[at.HEAD] + i) & (waiting.size - 1)], at.PROMPT]
    return tokens
