"""Prompts join the running decodes at any iteration; memory is set aside for the longest life.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022):
iteration-level scheduling. Without paging a request reserves what it might ever need, so few run.
"""

from __future__ import annotations

from simulators.serving.engine.admission import admit_reserving
from simulators.serving.engine.replica import (
    BATCH,
    BATCH_SEATS,
    FOREVER,
    IDLE,
    SCHEDULE,
    View,
    keep_idle,
    kernel,
    seat,
)

RESERVES = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """One token to each running request, then whole prompts while seats and memory last."""
    pool = view.pool
    seated = min(pool[IDLE], view.limits[BATCH_SEATS])
    for i in range(seated):
        seat(view, view.idle[i], 1)
    keep_idle(view, 0, seated, pool[IDLE])
    admit_reserving(view)
    return FOREVER if pool[BATCH] == seated and pool[IDLE] == 0 else 1
