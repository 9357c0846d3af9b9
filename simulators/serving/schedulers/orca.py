"""Prompts join the running decodes at any iteration; memory is set aside for the longest life.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022):
iteration-level scheduling. Without paging a request reserves what it might ever need, so few run.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit_reserving
from simulators.serving.engine.replica import SCHEDULE, View, keep_idle, kernel, schedule_request

RESERVES = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """One token to each running request, then whole prompts while seats and memory last."""
    pool = view.pool
    seated = min(pool[at.IDLE], view.limits[at.BATCH_SEATS])
    for i in range(seated):
        schedule_request(view, view.idle[i], 1)
    keep_idle(view, 0, seated, pool[at.IDLE])
    admit_reserving(view)
    return at.FOREVER if pool[at.BATCH] == seated and pool[at.IDLE] == 0 else 1
