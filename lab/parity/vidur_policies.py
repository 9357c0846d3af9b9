"""VIDUR's vLLM scheduler and its LOR router, where they differ from the engines' own.

Load them as `load_scheduler("lab.parity.vidur_policies")` and `load_router(...)` of the same name.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import admit, blocks_for, can_admit, has_free_blocks
from simulators.serving.engine.replica import ROUTE, SCHEDULE, View, kernel
from simulators.serving.schedulers.vllm import decode_all

PREFILL_FIRST = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Admit prompts while they fit, each counted as if padded to the longest; none: decode all."""
    limits, pool = view.limits, view.pool
    longest = 0
    while can_admit(limits, pool):
        prompt = view.request[view.waiting[pool[at.WAITING_HEAD]], at.PROMPT]
        longest = max(longest, prompt)
        if (
            pool[at.BATCH_SIZE] > 0
            and (pool[at.BATCH_SIZE] + 1) * longest > limits[at.MAX_PREFILL_TOKENS]
        ):
            break
        blocks = blocks_for(prompt, limits[at.BLOCK])
        if not has_free_blocks(limits, pool, blocks):
            break
        admit(view, blocks, prompt, 0)
    return 1 if pool[at.BATCH_SIZE] > 0 else decode_all(view)


@kernel(ROUTE)
def route(_arrivals: int, waiting: Ints, _running: Ints, _found: Ints, _draws: Floats) -> int:
    """Return the replica with the fewest waiting requests, running ones not counted."""
    best = 0
    for replica in range(1, waiting.size):
        if waiting[replica] < waiting[best]:
            best = replica
    return best
