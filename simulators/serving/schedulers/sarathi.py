"""Decodes first, then chunked prefills within the token budget: no prefill stalls a decode.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024).
Decodes count against the budget; a prompt without a token keeps its place in the queue.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import admit_chunks, schedule_decodes, schedule_running
from simulators.serving.engine.replica import SCHEDULE, View, kernel, sort_by_arrival

CHUNKED = CACHES_PREFIXES = KV_TRANSFER = LIMITS_ONLY_REFUSE = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Schedule all decodes, then partial prefills, then new prompts with the rest of the budget."""
    pool = view.pool
    schedule_decodes(view)
    decodes = pool[at.BATCH_SIZE]
    token_budget = schedule_running(
        view, view.limits[at.TOKEN_BUDGET] - decodes * (1 + pool[at.NUM_DRAFTS]), True
    )
    sort_by_arrival(view.request, view.running, pool[at.RUNNING])
    admit_chunks(view, token_budget, True)
    return at.UNTIL_CHANGED if pool[at.BATCH_SIZE] == decodes and pool[at.RUNNING] == 0 else 1
