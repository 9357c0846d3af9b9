"""Iteration-level batching with memory reserved for the longest sequence.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022):
prompts join the running decodes at any iteration. Without paging a request reserves memory for the
longest possible sequence, so that few requests run.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import admit_with_reservation
from simulators.serving.engine.replica import SCHEDULE, View, keep_running, kernel, schedule_request

RESERVES = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Schedule running requests, then whole prompts while slots and memory last."""
    pool = view.pool
    scheduled = min(pool[at.RUNNING], view.limits[at.MAX_BATCH_SEQS])
    for i in range(scheduled):
        schedule_request(view, view.running[i], 1)
    keep_running(view, 0, scheduled, pool[at.RUNNING])
    admit_with_reservation(view)
    return at.UNTIL_CHANGED if pool[at.BATCH_SIZE] == scheduled and pool[at.RUNNING] == 0 else 1
