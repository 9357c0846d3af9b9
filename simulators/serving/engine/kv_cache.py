"""The paged KV cache: requests hold whole blocks, take one more when they outgrow them, lose them.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023). New requests leave a watermark of free blocks; running ones do not. When none is free, the
request that arrived last is preempted: it gives its blocks back and later recomputes its context;
or, where the host has room, they are moved there, and back before anybody else is admitted.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, matrix
from simulators.serving.engine.replica import (
    BATCH,
    BATCH_SEATS,
    BELOW,
    BLOCK,
    BLOCKS,
    DONE,
    FREE,
    HOLDERS,
    HOST,
    HOSTED,
    IDLE,
    KEEPS,
    LEFT_BLOCKS,
    MOVED,
    OUTPUT,
    PARITY,
    PROMPT,
    RESTARTED,
    RESTARTS,
    SEATS,
    SWAPPED,
    SWAPS,
    TAKEN,
    TOP,
    UNTIL,
    VIEW,
    WATERMARK,
    View,
    keep_idle,
    kernel,
    return_waiting,
    seat,
)


@kernel(i8(i8, i8))
def blocks_for(tokens: int, block: int) -> int:
    """Return the blocks that hold so many tokens."""
    return (tokens + block - 1) // block


@kernel(boolean(*arrays(i8, 2), i8))
def fits(limits: Ints, pool: Ints, blocks: int) -> bool:
    """Return whether a new request may take so many blocks and leave the watermark."""
    return pool[FREE] - blocks >= limits[WATERMARK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8))
def allocate(pool: Ints, request: Ints, who: int, blocks: int) -> int:
    """Give a request its first blocks and return how many are free."""
    request[who, BLOCKS] = blocks
    pool[FREE] -= blocks
    pool[TAKEN] += blocks
    pool[HOLDERS] += 1
    return pool[FREE]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8))
def extend(pool: Ints, request: Ints, who: int, blocks: int) -> int:
    """Give a request more blocks, if any, and return how many are free."""
    request[who, BLOCKS] += max(blocks, 0)
    pool[FREE] -= max(blocks, 0)
    pool[TAKEN] += max(blocks, 0)
    return pool[FREE]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8))
def release(pool: Ints, request: Ints, who: int) -> int:
    """Take all blocks of a request back and return how many are free."""
    pool[FREE] += request[who, BLOCKS]
    pool[HOLDERS] -= 1
    request[who, BLOCKS] = 0
    return pool[FREE]  # type: ignore[no-any-return]


@kernel(i8(VIEW, i8))
def restart(view: View, who: int) -> int:
    """Send a request back to the front of the queue; what it has generated joins its prompt.

    VIDUR also shortens the prompt of a request restarted in the middle of its prefill.
    """
    pool, request = view.pool, view.request
    release(pool, request, who)
    done = request[who, DONE]
    if done > request[who, PROMPT] or view.limits[PARITY] == 1:
        request[who, OUTPUT] += request[who, PROMPT] - done
        request[who, PROMPT] = done
    request[who, DONE] = 0
    request[who, RESTARTS] += 1
    pool[RESTARTED] += 1
    return return_waiting(pool, view.waiting, who)


@kernel(i8(VIEW, i8))
def preempt(view: View, who: int) -> int:
    """Take the blocks of a running request: to the host if it has room, else to be recomputed.

    Returns how often requests of the replica have been preempted.
    """
    pool, request = view.pool, view.request
    blocks = request[who, BLOCKS]
    if view.limits[HOST] - pool[HOSTED] < blocks:
        restart(view, who)
        return preemptions(pool)
    pool[FREE] += blocks
    pool[HOLDERS] -= 1
    request[who, BELOW] = pool[TOP]
    pool[TOP] = who
    pool[SWAPPED] += 1
    pool[SWAPS] += 1
    pool[HOSTED] += blocks
    pool[MOVED] += blocks
    return preemptions(pool)


@kernel(i8(*arrays(i8, 2), matrix(i8), i8))
def leave_prefix(limits: Ints, pool: Ints, request: Ints, who: int) -> int:
    """Remember what a request that is about to be preempted leaves in a prefix cache; return it.

    Free blocks are taken in the order in which they became free, and of one request its last first.
    """
    request[who, LEFT_BLOCKS] = limits[KEEPS] * (request[who, DONE] // limits[BLOCK])
    request[who, UNTIL] = pool[TAKEN] + pool[FREE]
    return request[who, LEFT_BLOCKS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 2), matrix(i8), i8))
def prefix_left(limits: Ints, pool: Ints, request: Ints, who: int) -> int:
    """Return the tokens of a waiting request that are still cached; one must be computed."""
    overwritten = max(0, pool[TAKEN] - request[who, UNTIL])
    most = (request[who, PROMPT] - 1) // limits[BLOCK]
    blocks = min(request[who, LEFT_BLOCKS] - overwritten, most)
    return max(0, blocks) * limits[BLOCK]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1)))
def preemptions(pool: Ints) -> int:
    """Return how often requests of a replica have been preempted, one way or the other."""
    return pool[RESTARTED] + pool[SWAPS]  # type: ignore[no-any-return]


@kernel(boolean(*arrays(i8, 2), matrix(i8)))
def may_return(limits: Ints, pool: Ints, request: Ints) -> bool:
    """Return whether the first request on the host would find a seat and room here."""
    return (
        pool[SWAPPED] > 0
        and pool[HOLDERS] < limits[SEATS]
        and fits(limits, pool, request[pool[TOP], BLOCKS])
    )


@kernel(i8(VIEW))
def swap_in(view: View) -> int:
    """Bring requests back from the host while they fit; return how many are still there."""
    pool, request = view.pool, view.request
    while may_return(view.limits, pool, request):
        who = pool[TOP]
        blocks = request[who, BLOCKS]
        pool[TOP] = request[who, BELOW]
        pool[SWAPPED] -= 1
        pool[HOSTED] -= blocks
        pool[MOVED] += blocks
        allocate(pool, request, who, blocks)
        view.idle[pool[IDLE]] = who
        pool[IDLE] += 1
    return pool[SWAPPED]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), matrix(i8), i8, i8))
def drop_swapped(pool: Ints, request: Ints, who: int, above: int) -> int:
    """Forget a request that is on the host, where `above` lies above it; return its blocks."""
    if above < 0:
        pool[TOP] = request[who, BELOW]
    else:
        request[above, BELOW] = request[who, BELOW]
    blocks = request[who, BLOCKS]
    pool[SWAPPED] -= 1
    pool[HOSTED] -= blocks
    request[who, BLOCKS] = 0
    return blocks  # type: ignore[no-any-return]


@kernel(i8(VIEW))
def seat_decodes(view: View) -> int:
    """Give one token to each idle request that decodes, in the order of `idle`.

    Without a free block the last of those still idle is preempted, and if that is the request
    itself, itself. Returns how many partly prefilled requests now lead `idle`; those that found no
    seat follow them.
    """
    limits, pool, request, idle = view.limits, view.pool, view.request, view.idle
    head, count, partial = 0, pool[IDLE], 0
    while head < count and pool[BATCH] < limits[BATCH_SEATS]:
        who = idle[head]
        head += 1
        if request[who, DONE] <= request[who, PROMPT]:
            idle[partial] = who
            partial += 1
            continue
        while pool[FREE] < 1 and head < count:
            count -= 1
            preempt(view, idle[count])
        if pool[FREE] < 1:
            preempt(view, who)
            continue
        if request[who, DONE] > request[who, BLOCKS] * limits[BLOCK]:
            extend(pool, request, who, 1)
        seat(view, who, 1)
    keep_idle(view, partial, head, count)
    return partial
