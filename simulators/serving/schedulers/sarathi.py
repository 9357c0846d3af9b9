"""Decodes first, then prompts in chunks until the batch is full: no prompt stalls a decode.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024).
Decodes count against the chunk; a prompt offered no token keeps its place.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit_chunks, continue_idle
from simulators.serving.engine.kv_cache import seat_decodes
from simulators.serving.engine.replica import SCHEDULE, View, kernel, sort_by_arrival

CHUNKED = CACHES_PREFIXES = TAKES_UP = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """One token to every decode; what is left of the chunk to begun prompts, then to new ones."""
    pool = view.pool
    seat_decodes(view)
    decodes = pool[at.BATCH]
    left = continue_idle(view, view.limits[at.CHUNK] - decodes * (1 + pool[at.DRAFTS]), True)
    sort_by_arrival(view.request, view.idle, pool[at.IDLE])
    admit_chunks(view, left, True)
    return at.FOREVER if pool[at.BATCH] == decodes and pool[at.IDLE] == 0 else 1
