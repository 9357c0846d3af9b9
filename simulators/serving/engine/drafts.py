"""Numbers of draft tokens per iteration, and random numbers of accepted ones.

Acceptance depends on the seed, the request and its computed tokens only, so a sequence accepts the
same drafts whatever the rest of the batch is.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, several
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel
from simulators.serving.engine.state import STATE, ReplicaState, pool_of

LOW_BITS = at.CERTAIN - 1


@kernel(i8(i8))
def mixed(bits: int) -> int:
    """Return a 31-bit hash (multiply and shift; after Wellons, 2018)."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & LOW_BITS
    bits = ((bits ^ (bits >> 15)) * 0x46CA68B5) & LOW_BITS
    return bits ^ (bits >> 16)


@kernel(i8(*arrays(i8, 2)))
def drafted(limits: Ints, pool: Ints) -> int:
    """Return the draft tokens per decode at the current number of requests."""
    levels, running = 0, pool[at.NUM_RUNNING]
    if limits[at.DRAFT_COUNTS_WAITING] == 1:
        running += pool[at.WAITING] + pool[at.NUM_SWAPPED] + pool[at.WAITING_KV]
    while levels < limits[at.DRAFT_DEPTH] and running <= limits[at.DRAFT_MAX_RUNNING + levels]:
        levels += 1
    if levels > 0 and limits[at.DRAFT_DEPTH] < limits[at.NUM_DRAFT_TOKENS]:
        return limits[at.NUM_DRAFT_TOKENS]  # type: ignore[no-any-return]
    return levels


@kernel(boolean(*arrays(i8, 2)))
def drafts_change(limits: Ints, pool: Ints) -> bool:
    """Return whether the next iteration may draft another number of tokens.

    With several batches in flight the answer is always yes: each accepts other tokens.
    """
    if limits[at.NUM_DRAFT_TOKENS] == 0:
        return False
    has_several_batches = limits[at.STAGES] * limits[at.RANKS] > 1
    return has_several_batches or drafted(limits, pool) != pool[at.NUM_DRAFTS]  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def accepted(limits: Ints, drafts: int, req: int, num_computed: int) -> int:
    """Return how many drafted tokens of a request that has `done` tokens are accepted."""
    drawn = mixed(mixed(mixed(limits[at.SEED] & LOW_BITS) ^ req) ^ num_computed)
    count = 0
    for i in range(
        min(drafts, limits[at.DRAFT_DEPTH])
    ):  # a branch that depends on a draw costs more
        count += drawn < limits[at.ACCEPTANCE + i]
    return count


@kernel(several(i8, 2)(STATE, i8, i8, i8))
def draw(state: ReplicaState, replica: int, slot: int, made: int) -> tuple[int, int]:
    """Draw the accepted tokens of a repeated batch in the iteration that ends now.

    Adds them to `tokens`. Returns the blocks that another repeat must allocate (UNTIL_CHANGED and
    more if a request ends) and the growth of the keys.
    """
    request, batch, tokens = state.request, state.batch[slot], state.tokens[slot]
    limits, drafts = state.own[pool_of(state, replica)], state.pool[replica, at.NUM_DRAFTS]
    block, ahead, lacking, grown = limits[at.BLOCK], limits[at.NUM_DRAFT_TOKENS], 0, 0
    for i in range(state.sizes[slot]):
        req = batch[i]
        prompt, num_computed = request[req, at.PROMPT], request[req, at.NUM_COMPUTED]
        if num_computed <= prompt:
            continue
        end, num_computed = prompt + request[req, at.OUTPUT], num_computed + tokens[i] + made
        allocated = request[req, at.BLOCKS] * block
        needed = min(num_computed - 1 + ahead, end)
        if made > 0 and needed > allocated:
            request[req, at.BLOCKS] = -(-needed // block)
            allocated = request[req, at.BLOCKS] * block
        more = min(end - num_computed, accepted(limits, drafts, req, num_computed))
        tokens[i] += more
        grown += 1 + more
        needed = min(num_computed + more + ahead, end)
        if num_computed + more == end:
            lacking += at.UNTIL_CHANGED
        elif needed > allocated:
            lacking += -(-needed // block) - request[req, at.BLOCKS]
    return lacking, grown
