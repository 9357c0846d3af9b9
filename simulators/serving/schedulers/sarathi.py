"""Decodes first, then prompts in chunks until the batch is full: no prompt stalls a decode.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024).
Decodes count against the chunk; a prompt offered no token keeps its place.
"""

from __future__ import annotations

from simulators.serving.engine.admission import admit_chunks
from simulators.serving.engine.kv_cache import seat_decodes
from simulators.serving.engine.replica import (
    BATCH,
    CHUNK,
    DONE,
    FOREVER,
    IDLE,
    PROMPT,
    SCHEDULE,
    View,
    keep_idle,
    kernel,
    seat,
    sort_by_arrival,
)

CHUNKED = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """One token to every decode; what is left of the chunk to begun prompts, then to new ones."""
    pool, request, idle = view.pool, view.request, view.idle
    partial = seat_decodes(view)
    decodes = pool[BATCH]
    left = view.limits[CHUNK] - decodes
    skipped = 0
    for i in range(partial):
        who = idle[i]
        granted = min(request[who, PROMPT] - request[who, DONE], left)
        if granted > 0:
            seat(view, who, granted)
            left -= granted
        else:
            idle[skipped] = who
            skipped += 1
    keep_idle(view, skipped, partial, pool[IDLE])
    sort_by_arrival(request, idle, pool[IDLE])
    admit_chunks(view, left, True)
    return FOREVER if pool[BATCH] == decodes and pool[IDLE] == 0 else 1
