"""Decodes first, then prompts in chunks until the batch is full: no prompt stalls a decode.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024).
Decodes count against the chunk; a prompt offered no token keeps its place.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.admission import admit_chunks
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.kv_cache import seat_decodes
from simulators.serving.engine.replica import (
    BATCH,
    CHUNK,
    DONE,
    FOREVER,
    IDLE,
    PROMPT,
    SCHEDULE,
    seat,
    sort_by_arrival,
)

CHUNKED = True


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
    """One token to every decode; what is left of the chunk to begun prompts, then to new ones."""
    partial = seat_decodes(limits, pool, request, waiting, idle, batch, tokens)
    decodes = pool[BATCH]
    left = limits[CHUNK] - decodes
    skipped = 0
    for i in range(partial):
        who = idle[i]
        granted = min(request[who, PROMPT] - request[who, DONE], left)
        if granted > 0:
            seat(pool, batch, tokens, who, granted)
            left -= granted
        else:
            idle[skipped] = who
            skipped += 1
    for i in range(partial, pool[IDLE]):
        idle[skipped + i - partial] = idle[i]
    pool[IDLE] -= partial - skipped
    sort_by_arrival(request, idle, pool[IDLE])
    admit_chunks(limits, pool, request, waiting, batch, tokens, left, True)
    return FOREVER if pool[BATCH] == decodes and pool[IDLE] == 0 else 1
