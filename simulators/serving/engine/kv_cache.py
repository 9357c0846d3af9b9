"""The paged KV cache: allocation, growth, release and preemption.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). Admission leaves a watermark of free blocks; running requests do not. Without a free block,
the request that arrived last is preempted. It frees its blocks and recomputes its context later;
or, with swap space on the host, its blocks move there, and back before any other admission.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.prefix_cache import ACCOUNT, release_path
from simulators.serving.engine.replica import (
    OPTIONAL_FEATURES,
    VIEW,
    View,
    keep_running,
    kernel,
    return_waiting,
    schedule_request,
)


@kernel(i8(i8, i8))
def blocks_for(tokens: int, block: int) -> int:
    """Return the number of blocks for some tokens."""
    return (tokens + block - 1) // block


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def blocks_missing(limits: Ints, request: Ints, req: int) -> int:
    """Return the number of blocks to allocate for a decode's next token and draft tokens."""
    end = request[req, at.PROMPT] + request[req, at.OUTPUT]
    tokens = max(
        request[req, at.NUM_COMPUTED],
        min(request[req, at.NUM_COMPUTED] + limits[at.NUM_DRAFT_TOKENS], end),
    )
    if tokens <= request[req, at.BLOCKS] * limits[at.BLOCK]:  # mostly, and products cost less
        return 0
    return blocks_for(tokens, limits[at.BLOCK]) - request[req, at.BLOCKS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), i8))
def has_free_blocks(limits: Ints, pool: Ints, blocks: int) -> bool:
    """Return whether admission can allocate some blocks and leave the watermark."""
    return pool[at.FREE_BLOCKS] - blocks >= limits[at.WATERMARK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8, i8))
def allocate(pool: Ints, request: Ints, req: int, blocks: int, shared: int) -> int:
    """Allocate the first blocks of a request, `shared` ones excepted; return the free blocks."""
    request[req, at.BLOCKS] = blocks
    pool[at.FREE_BLOCKS] -= blocks - shared
    pool[at.NUM_RUNNING] += 1
    return pool[at.FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8))
def append_blocks(pool: Ints, request: Ints, req: int, blocks: int) -> int:
    """Allocate further blocks for a request and return the number of free blocks."""
    request[req, at.BLOCKS] += max(blocks, 0)
    pool[at.FREE_BLOCKS] -= max(blocks, 0)
    return pool[at.FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def release(limits: Ints, pool: Ints, request: Ints, tree: Ints, req: int) -> int:
    """Free the blocks of a request that no other request references; return the free blocks."""
    freed = request[req, at.BLOCKS]
    if OPTIONAL_FEATURES:
        freed = release_path(limits, pool, request, tree, req)  # which may free a copy besides
    pool[at.FREE_BLOCKS] += freed
    pool[at.NUM_RUNNING] -= 1
    request[req, at.BLOCKS] = 0
    return pool[at.FREE_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def preempt_recompute(view: View, req: int) -> int:
    """Return a request to the front of the queue; generated tokens become part of its prompt."""
    pool, request = view.pool, view.request
    release(view.limits, pool, request, view.tree, req)
    num_computed = request[req, at.NUM_COMPUTED]
    if num_computed > request[req, at.PROMPT]:
        request[req, at.OUTPUT] += request[req, at.PROMPT] - num_computed
        request[req, at.PROMPT] = num_computed
    request[req, at.NUM_COMPUTED] = 0
    request[req, at.NUM_RECOMPUTES] += 1
    pool[at.RECOMPUTE_PREEMPTIONS] += 1
    return return_waiting(pool, view.waiting, req)


@kernel(i8(VIEW, i8))
def preempt(view: View, req: int) -> int:
    """Preempt a running request: by swapping while the host has space, else by recomputation.

    Returns the number of preemptions of the replica.
    """
    pool, request = view.pool, view.request
    blocks = request[req, at.BLOCKS]
    if view.limits[at.SWAP_CAPACITY] - pool[at.SWAPPED_BLOCKS] < blocks:
        preempt_recompute(view, req)
        return preemptions(pool)
    pool[at.FREE_BLOCKS] += blocks
    pool[at.NUM_RUNNING] -= 1
    request[req, at.SWAPPED_BEFORE] = pool[at.SWAPPED_LAST]
    pool[at.SWAPPED_LAST] = req
    pool[at.NUM_SWAPPED] += 1
    pool[at.SWAP_PREEMPTIONS] += 1
    pool[at.SWAPPED_BLOCKS] += blocks
    pool[at.BLOCKS_TO_MOVE] += blocks
    return preemptions(pool)


@kernel(i8(*arrays(i8, 1)))
def preemptions(pool: Ints) -> int:
    """Return the number of preemptions of a replica, of both kinds."""
    return pool[at.RECOMPUTE_PREEMPTIONS] + pool[at.SWAP_PREEMPTIONS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), matrix(i8)))
def can_swap_in(limits: Ints, pool: Ints, request: Ints) -> bool:
    """Return whether the swapped request at the top of the stack has a slot and blocks."""
    return (
        pool[at.NUM_SWAPPED] > 0
        and pool[at.NUM_RUNNING] < limits[at.MAX_NUM_SEQS]
        and has_free_blocks(limits, pool, request[pool[at.SWAPPED_LAST], at.BLOCKS])
    )


@kernel(i8(VIEW))
def swap_in(view: View) -> int:
    """Swap requests in while they fit; return the number of requests still swapped."""
    pool, request = view.pool, view.request
    while can_swap_in(view.limits, pool, request):
        req = pool[at.SWAPPED_LAST]
        blocks = request[req, at.BLOCKS]
        pool[at.SWAPPED_LAST] = request[req, at.SWAPPED_BEFORE]
        pool[at.NUM_SWAPPED] -= 1
        pool[at.SWAPPED_BLOCKS] -= blocks
        pool[at.BLOCKS_TO_MOVE] += blocks
        allocate(pool, request, req, blocks, 0)
        view.running[pool[at.RUNNING]] = req
        pool[at.RUNNING] += 1
    return pool[at.NUM_SWAPPED]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def schedule_decodes(view: View) -> int:
    """Schedule one token for each decode, in the order of `running`.

    Without a free block the last entry of `running` is preempted, which may be the request itself.
    Returns the number of partial prefills at the head of `running`; decodes without a slot follow.
    """
    limits, pool, request, running = view.limits, view.pool, view.request, view.running
    head, count, partial = 0, pool[at.RUNNING], 0
    while head < count and pool[at.BATCH_SIZE] < limits[at.MAX_BATCH_SEQS]:
        req = running[head]
        head += 1
        if request[req, at.NUM_COMPUTED] <= request[req, at.PROMPT]:
            running[partial] = req
            partial += 1
            continue
        needed = blocks_missing(limits, request, req)
        while pool[at.FREE_BLOCKS] < max(1, needed) and head < count:
            count -= 1
            preempt(view, running[count])
        if pool[at.FREE_BLOCKS] < max(1, needed):
            preempt(view, req)
            continue
        if needed > 0:
            append_blocks(pool, request, req, needed)
        schedule_request(view, req, 1)
    keep_running(view, partial, head, count)
    return partial
