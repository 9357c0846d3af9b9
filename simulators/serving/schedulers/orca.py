"""Prompts join the running decodes at any iteration; memory is set aside for the longest life.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022):
iteration-level scheduling. Without paging a request reserves what it might ever need, so few run.
"""

from __future__ import annotations

from simulators.core.jit import Floats, Ints
from simulators.serving.engine.admission import admit_reserving
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.replica import BATCH, BATCH_SEATS, FOREVER, IDLE, SCHEDULE, seat

RESERVES = True


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
    """One token to each running request, then whole prompts while seats and memory last."""
    seated = min(pool[IDLE], limits[BATCH_SEATS])
    for i in range(seated):
        seat(pool, batch, tokens, idle[i], 1)
    for i in range(seated, pool[IDLE]):
        idle[i - seated] = idle[i]
    pool[IDLE] -= seated
    admit_reserving(limits, pool, request, waiting, batch, tokens)
    return FOREVER if pool[BATCH] == seated and pool[IDLE] == 0 else 1
