"""Prompts join the running decodes, and nobody is let in who might have to be put out again.

TensorRT-LLM's in-flight batching under its default capacity policy, GUARANTEED_NO_EVICT: a request
enters when the blocks of its prompt and of its longest output are free, and keeps them.
`chunk_size` is `max_num_tokens`: decodes take one each, whole prompts what is left; a prompt that
could never fit whole is cut. The memory fraction is one of what weights and activations leave.
Under attention data parallelism one queue is dealt out to the ranks by their load, each iteration.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit, continue_idle, finds_seat
from simulators.serving.engine.kv_cache import blocks_for
from simulators.serving.engine.replica import SCHEDULE, View, kernel

CHUNKED = OF_REST = DEALS_OUT = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """One token to each decode, then prompts that were cut, then whole ones while tokens last."""
    limits, pool, request = view.limits, view.pool, view.request
    left = continue_idle(view, continue_idle(view, limits[at.CHUNK], False), True)
    running = pool[at.BATCH]
    while left > 0 and finds_seat(limits, pool):
        who = view.waiting[pool[at.HEAD]]
        prompt = request[who, at.PROMPT]
        alone = pool[at.BATCH] == running
        if prompt > left and not (alone and prompt + running > limits[at.CHUNK]):
            break
        blocks = blocks_for(prompt + request[who, at.OUTPUT], limits[at.BLOCK])
        if pool[at.FREE] < blocks:
            break
        granted = min(prompt, left)
        admit(view, blocks, granted)
        left -= granted
    return at.FOREVER if pool[at.BATCH] == running and left == limits[at.CHUNK] - running else 1
