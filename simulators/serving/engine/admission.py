"""Who is let in from the queue: the head, while a seat and memory for it are free.

Nobody overtakes, neither the head of the queue nor a request that was moved to the host.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, matrix
from simulators.serving.engine.kernel import kernel
from simulators.serving.engine.kv_cache import allocate, blocks_for, fits, prefix_left
from simulators.serving.engine.replica import (
    BATCH,
    BATCH_SEATS,
    BLOCK,
    DONE,
    FREE,
    HEAD,
    HOLDERS,
    PROMPT,
    RESERVED,
    SEATS,
    SWAPPED,
    WAITING,
    pop_waiting,
    seat,
)


@kernel(boolean(*arrays(i8, 2)))
def may_admit(limits: Ints, pool: Ints) -> bool:
    """Return whether somebody waits and would find a seat."""
    return (  # type: ignore[no-any-return]
        pool[WAITING] > 0
        and pool[SWAPPED] == 0
        and pool[HOLDERS] < limits[SEATS]
        and pool[BATCH] < limits[BATCH_SEATS]
    )


@kernel(i8(*arrays(i8, 2), matrix(i8), *arrays(i8, 3), i8, boolean))
def admit_chunks(
    limits: Ints,
    pool: Ints,
    request: Ints,
    waiting: Ints,
    batch: Ints,
    tokens: Ints,
    budget: int,
    whole: bool,
) -> int:
    """Share tokens among prompts from the head of the queue; return what is left of them.

    A prompt takes blocks for the tokens it is given now or, if `whole`, for all it has. What a
    preempted one left in a prefix cache, and nobody has overwritten, counts as done.
    """
    while budget > 0 and may_admit(limits, pool):
        first = waiting[pool[HEAD]]
        prompt, cached = request[first, PROMPT], prefix_left(limits, pool, request, first)
        granted = min(prompt - cached, budget)
        blocks = blocks_for(prompt if whole else cached + granted, limits[BLOCK])
        if not fits(limits, pool, blocks):
            break
        who = pop_waiting(pool, waiting)
        allocate(pool, request, who, blocks)
        request[who, DONE] = cached
        seat(pool, batch, tokens, who, granted)
        budget -= granted
    return budget


@kernel(i8(*arrays(i8, 2), matrix(i8), *arrays(i8, 3)))
def admit_reserving(
    limits: Ints, pool: Ints, request: Ints, waiting: Ints, batch: Ints, tokens: Ints
) -> int:
    """Admit whole prompts, each with memory for the longest life; return the batch's size."""
    while may_admit(limits, pool) and pool[FREE] >= limits[RESERVED]:
        prompt = request[waiting[pool[HEAD]], PROMPT]
        who = pop_waiting(pool, waiting)
        allocate(pool, request, who, limits[RESERVED])
        seat(pool, batch, tokens, who, prompt)
    return pool[BATCH]  # type: ignore[no-any-return]
