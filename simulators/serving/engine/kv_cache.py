"""The paged KV cache: requests take blocks, outgrow them, give them back or lose them.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). New requests leave a watermark of free blocks; running ones do not. When none is free, the
request that arrived last is preempted: it gives its blocks back and later recomputes its context;
or, where the host has room, they are moved there, and back before anybody else is admitted.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, matrix
from simulators.serving.engine import replica as at
from simulators.serving.engine.prefix_cache import ACCOUNT, leave
from simulators.serving.engine.replica import (
    RARE,
    VIEW,
    View,
    keep_idle,
    kernel,
    return_waiting,
    schedule_request,
)


@kernel(i8(i8, i8))
def blocks_for(tokens: int, block: int) -> int:
    """Return the blocks that hold so many tokens."""
    return (tokens + block - 1) // block


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def blocks_missing(limits: Ints, request: Ints, who: int) -> int:
    """Return the blocks that a request that decodes lacks for its next token and its drafts."""
    end = request[who, at.PROMPT] + request[who, at.OUTPUT]
    tokens = max(request[who, at.DONE], min(request[who, at.DONE] + limits[at.DRAFTED], end))
    if tokens <= request[who, at.BLOCKS] * limits[at.BLOCK]:  # mostly, and products cost less
        return 0
    return blocks_for(tokens, limits[at.BLOCK]) - request[who, at.BLOCKS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), i8))
def fits(limits: Ints, pool: Ints, blocks: int) -> bool:
    """Return whether a new request may take so many blocks and leave the watermark."""
    return pool[at.FREE] - blocks >= limits[at.WATERMARK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8, i8))
def allocate(pool: Ints, request: Ints, who: int, blocks: int, shared: int) -> int:
    """Give a request its first blocks, of which others hold some, and return how many are free."""
    request[who, at.BLOCKS] = blocks
    pool[at.FREE] -= blocks - shared
    pool[at.HOLDERS] += 1
    return pool[at.FREE]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8))
def extend(pool: Ints, request: Ints, who: int, blocks: int) -> int:
    """Give a request more blocks, if any, and return how many are free."""
    request[who, at.BLOCKS] += max(blocks, 0)
    pool[at.FREE] -= max(blocks, 0)
    return pool[at.FREE]  # type: ignore[no-any-return]


@kernel(i8(*ACCOUNT, i8))
def release(limits: Ints, pool: Ints, request: Ints, tree: Ints, who: int) -> int:
    """Take the blocks of a request back that nobody else holds and return how many are free."""
    freed = request[who, at.BLOCKS]
    if RARE:
        freed = leave(limits, pool, request, tree, who)  # which may free a copy besides
    pool[at.FREE] += freed
    pool[at.HOLDERS] -= 1
    request[who, at.BLOCKS] = 0
    return pool[at.FREE]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def restart(view: View, who: int) -> int:
    """Send a request back to the front of the queue; what it has generated joins its prompt."""
    pool, request = view.pool, view.request
    release(view.limits, pool, request, view.tree, who)
    done = request[who, at.DONE]
    if done > request[who, at.PROMPT]:
        request[who, at.OUTPUT] += request[who, at.PROMPT] - done
        request[who, at.PROMPT] = done
    request[who, at.DONE] = 0
    request[who, at.RESTARTS] += 1
    pool[at.RESTARTED] += 1
    return return_waiting(pool, view.waiting, who)


@kernel(i8(VIEW, i8))
def preempt(view: View, who: int) -> int:
    """Take the blocks of a running request: to the host if it has room, else to be recomputed.

    Returns how often requests of the replica have been preempted.
    """
    pool, request = view.pool, view.request
    blocks = request[who, at.BLOCKS]
    if view.limits[at.HOST] - pool[at.HOSTED] < blocks:
        restart(view, who)
        return preemptions(pool)
    pool[at.FREE] += blocks
    pool[at.HOLDERS] -= 1
    request[who, at.BELOW] = pool[at.TOP]
    pool[at.TOP] = who
    pool[at.SWAPPED] += 1
    pool[at.SWAPS] += 1
    pool[at.HOSTED] += blocks
    pool[at.MOVED] += blocks
    return preemptions(pool)


@kernel(i8(*arrays(i8, 1)))
def preemptions(pool: Ints) -> int:
    """Return how often requests of a replica have been preempted, one way or the other."""
    return pool[at.RESTARTED] + pool[at.SWAPS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), matrix(i8)))
def may_return(limits: Ints, pool: Ints, request: Ints) -> bool:
    """Return whether the first request on the host would find a seat and room here."""
    return (
        pool[at.SWAPPED] > 0
        and pool[at.HOLDERS] < limits[at.SEATS]
        and fits(limits, pool, request[pool[at.TOP], at.BLOCKS])
    )


@kernel(i8(VIEW))
def swap_in(view: View) -> int:
    """Bring requests back from the host while they fit; return how many are still there."""
    pool, request = view.pool, view.request
    while may_return(view.limits, pool, request):
        who = pool[at.TOP]
        blocks = request[who, at.BLOCKS]
        pool[at.TOP] = request[who, at.BELOW]
        pool[at.SWAPPED] -= 1
        pool[at.HOSTED] -= blocks
        pool[at.MOVED] += blocks
        allocate(pool, request, who, blocks, 0)
        view.idle[pool[at.IDLE]] = who
        pool[at.IDLE] += 1
    return pool[at.SWAPPED]  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def seat_decodes(view: View) -> int:
    """Give one token to each idle request that decodes, in the order of `idle`.

    Without a free block the last of those still idle is preempted, and if that is the request
    itself, itself. Returns how many partly prefilled requests now lead `idle`; those that found no
    seat follow them.
    """
    limits, pool, request, idle = view.limits, view.pool, view.request, view.idle
    head, count, partial = 0, pool[at.IDLE], 0
    while head < count and pool[at.BATCH] < limits[at.BATCH_SEATS]:
        who = idle[head]
        head += 1
        if request[who, at.DONE] <= request[who, at.PROMPT]:
            idle[partial] = who
            partial += 1
            continue
        needed = blocks_missing(limits, request, who)
        while pool[at.FREE] < max(1, needed) and head < count:
            count -= 1
            preempt(view, idle[count])
        if pool[at.FREE] < max(1, needed):
            preempt(view, who)
            continue
        if needed > 0:
            extend(pool, request, who, needed)
        schedule_request(view, who, 1)
    keep_idle(view, partial, head, count)
    return partial
