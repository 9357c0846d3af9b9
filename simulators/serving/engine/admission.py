"""Admission of waiting requests, in the order of the queue, while slots and KV blocks are free.

No request overtakes the head of the queue or a swapped request.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import allocate, blocks_for, has_free_blocks
from simulators.serving.engine.prefix_cache import (
    acquire_prefix,
    blocks_held,
    cache_blocks,
    cached_tokens,
)
from simulators.serving.engine.replica import (
    OPTIONAL_FEATURES,
    VIEW,
    View,
    kernel,
    pop_waiting,
    schedule_request,
)


@kernel(boolean(*arrays(i8, 2)))
def has_waiting_slot(limits: Ints, pool: Ints) -> bool:
    """Return whether a request waits and the running batch has a slot for it."""
    free = (
        pool[at.NUM_RUNNING] < limits[at.MAX_NUM_SEQS]
        and pool[at.BATCH_SIZE] < limits[at.MAX_BATCH_SEQS]
    )
    return pool[at.WAITING] > 0 and free  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2)))
def can_admit(limits: Ints, pool: Ints) -> bool:
    """Return whether a request waits, has a slot, and overtakes no swapped request."""
    return has_waiting_slot(limits, pool) and pool[at.NUM_SWAPPED] == 0


@kernel(i8(VIEW, i8, i8, i8))
def admit(view: View, blocks: int, num_scheduled: int, cached: int) -> int:
    """Admit the head of the queue with KV blocks and scheduled tokens; return the request.

    The `cached` tokens of its prompt count as computed.
    """
    limits, pool, request = view.limits, view.pool, view.request
    req = pop_waiting(pool, view.waiting)
    shared = 0
    if OPTIONAL_FEATURES:
        shared = acquire_prefix(limits, pool, request, view.tree, req, cached)
    allocate(pool, request, req, blocks, shared)
    if OPTIONAL_FEATURES:
        cache_blocks(limits, pool, request, view.tree, req, cached + num_scheduled)
    schedule_request(view, req, num_scheduled)
    return req


@kernel(i8(VIEW, i8))
def cached_tokens_of(view: View, req: int) -> int:
    """Return the prompt tokens of a waiting request that the prefix cache holds."""
    if OPTIONAL_FEATURES:
        return cached_tokens(view.limits, view.pool, view.request, view.tree, req)
    return 0


@kernel(i8(VIEW, i8, i8))
def shared_blocks(view: View, req: int, cached: int) -> int:
    """Return the cached blocks of a waiting request that running requests hold."""
    if OPTIONAL_FEATURES and cached > 0:
        return blocks_held(view.pool, view.request, view.tree, req)
    return 0


@kernel(i8(VIEW, i8, boolean))
def admit_chunks(view: View, token_budget: int, whole: bool) -> int:
    """Schedule prompts from the head of the queue within a token budget; return the rest of it.

    A prompt allocates blocks for its scheduled tokens or, if `whole`, for the whole prompt. Cached
    tokens are not computed.
    """
    limits, pool, request = view.limits, view.pool, view.request
    while token_budget > 0 and can_admit(limits, pool):
        first = view.waiting[pool[at.WAITING_HEAD]]
        prompt, cached = request[first, at.PROMPT], cached_tokens_of(view, first)
        num_scheduled = min(prompt - cached, token_budget)
        blocks = blocks_for(prompt if whole else cached + num_scheduled, limits[at.BLOCK])
        if not has_free_blocks(limits, pool, blocks - shared_blocks(view, first, cached)):
            break
        admit(view, blocks, num_scheduled, cached)
        token_budget -= num_scheduled
    return token_budget


@kernel(i8(VIEW, i8, boolean))
def schedule_running(view: View, token_budget: int, prompts: bool) -> int:
    """Schedule running decodes or, if `prompts`, partial prefills; return the remaining budget."""
    pool, request, running = view.pool, view.request, view.running
    kept = 0
    for i in range(pool[at.RUNNING]):
        req = running[i]
        missing = request[req, at.PROMPT] - request[req, at.NUM_COMPUTED]
        if token_budget > 0 and (missing > 0) == prompts:
            num_scheduled = min(missing, token_budget) if prompts else 1
            schedule_request(view, req, num_scheduled)
            token_budget -= num_scheduled if prompts else 1 + pool[at.NUM_DRAFTS]
        else:
            running[kept] = req
            kept += 1
    pool[at.RUNNING] = kept
    return token_budget


@kernel(i8(VIEW))
def admit_with_reservation(view: View) -> int:
    """Admit whole prompts, each with blocks for the longest sequence; return the batch size."""
    limits, pool = view.limits, view.pool
    while can_admit(limits, pool) and pool[at.FREE_BLOCKS] >= limits[at.RESERVED]:
        admit(
            view,
            limits[at.RESERVED],
            view.request[view.waiting[pool[at.WAITING_HEAD]], at.PROMPT],
            0,
        )
    return pool[at.BATCH_SIZE]  # type: ignore[no-any-return]
