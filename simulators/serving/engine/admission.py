"""Admission from the queue: its head is let in while a seat and memory for it are free.

Nobody overtakes, neither the head of the queue nor a request that was moved to the host.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import allocate, blocks_for, fits
from simulators.serving.engine.prefix_cache import blocks_held, cached_tokens, join, publish
from simulators.serving.engine.replica import (
    RARE,
    VIEW,
    View,
    kernel,
    pop_waiting,
    schedule_request,
)


@kernel(boolean(*arrays(i8, 2)))
def finds_seat(limits: Ints, pool: Ints) -> bool:
    """Return whether somebody waits and would find a seat."""
    free = pool[at.HOLDERS] < limits[at.SEATS] and pool[at.BATCH] < limits[at.BATCH_SEATS]
    return pool[at.WAITING] > 0 and free  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2)))
def may_admit(limits: Ints, pool: Ints) -> bool:
    """Return whether somebody waits, would find a seat and overtakes nobody on the host."""
    return finds_seat(limits, pool) and pool[at.SWAPPED] == 0


@kernel(i8(VIEW, i8, i8, i8))
def admit(view: View, blocks: int, granted: int, cached: int) -> int:
    """Let the head of the queue in, with blocks and tokens of the batch; return who that is.

    Of its prompt so many tokens are `cached` and count as done.
    """
    limits, pool, request = view.limits, view.pool, view.request
    who = pop_waiting(pool, view.waiting)
    shared = 0
    if RARE:
        shared = join(limits, pool, request, view.tree, who, cached)
    allocate(pool, request, who, blocks, shared)
    if RARE:
        publish(limits, pool, request, view.tree, who, cached + granted)
    schedule_request(view, who, granted)
    return who


@kernel(i8(VIEW, i8))
def found_of(view: View, who: int) -> int:
    """Return how many tokens of a waiting request's prompt a prefix cache has."""
    if RARE:
        return cached_tokens(view.limits, view.pool, view.request, view.tree, who)
    return 0


@kernel(i8(VIEW, i8, i8))
def shared_by(view: View, who: int, cached: int) -> int:
    """Return the blocks of what is `cached` of a waiting request that others hold."""
    if RARE and cached > 0:
        return blocks_held(view.pool, view.request, view.tree, who)
    return 0


@kernel(i8(VIEW, i8, boolean))
def admit_chunks(view: View, budget: int, whole: bool) -> int:
    """Share tokens among prompts from the head of the queue; return what is left of them.

    A prompt takes blocks for the tokens it is given now or, if `whole`, for all it has. What is
    found of it in a prefix cache is not computed.
    """
    limits, pool, request = view.limits, view.pool, view.request
    while budget > 0 and may_admit(limits, pool):
        first = view.waiting[pool[at.HEAD]]
        prompt, cached = request[first, at.PROMPT], found_of(view, first)
        granted = min(prompt - cached, budget)
        blocks = blocks_for(prompt if whole else cached + granted, limits[at.BLOCK])
        if not fits(limits, pool, blocks - shared_by(view, first, cached)):
            break
        admit(view, blocks, granted, cached)
        budget -= granted
    return budget


@kernel(i8(VIEW, i8, boolean))
def continue_idle(view: View, left: int, prompts: bool) -> int:
    """Share tokens among idle requests that decode or, if `prompts`, whose prompt was cut.

    Returns what is left of them.
    """
    pool, request, idle = view.pool, view.request, view.idle
    kept = 0
    for i in range(pool[at.IDLE]):
        who = idle[i]
        missing = request[who, at.PROMPT] - request[who, at.DONE]
        if left > 0 and (missing > 0) == prompts:
            granted = min(missing, left) if prompts else 1
            schedule_request(view, who, granted)
            left -= granted if prompts else 1 + pool[at.DRAFTS]
        else:
            idle[kept] = who
            kept += 1
    pool[at.IDLE] = kept
    return left


@kernel(i8(VIEW))
def admit_reserving(view: View) -> int:
    """Admit whole prompts, each with memory for the longest life; return the batch's size."""
    limits, pool = view.limits, view.pool
    while may_admit(limits, pool) and pool[at.FREE] >= limits[at.RESERVED]:
        admit(view, limits[at.RESERVED], view.request[view.waiting[pool[at.HEAD]], at.PROMPT], 0)
    return pool[at.BATCH]  # type: ignore[no-any-return]
