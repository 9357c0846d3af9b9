"""How many tokens of a sequence an iteration drafts, and accepts: drawn from its place in the run.

What is drawn depends on the seed, the request and its tokens so far alone, so that the same
sequence accepts the same drafts whatever runs beside it.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, boolean, i8, several
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel
from simulators.serving.engine.state import STATE, ReplicaState, pool_of

LOW_BITS = at.CERTAIN - 1


@kernel(i8(i8))
def mixed(bits: int) -> int:
    """Return 31 bits that look drawn, of other ones (multiply and shift; after Wellons, 2018)."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & LOW_BITS
    bits = ((bits ^ (bits >> 15)) * 0x46CA68B5) & LOW_BITS
    return bits ^ (bits >> 16)


@kernel(i8(*arrays(i8, 2)))
def drafted(limits: Ints, pool: Ints) -> int:
    """Return the tokens drafted for each decode while so many requests run, or run and wait."""
    levels, running = 0, pool[at.HOLDERS]
    if limits[at.DRAFT_LOAD] == 1:
        running += pool[at.WAITING] + pool[at.SWAPPED] + pool[at.HANDED]
    while levels < limits[at.DEPTH] and running <= limits[at.DRAFT_UP_TO + levels]:
        levels += 1
    if levels > 0 and limits[at.DEPTH] < limits[at.DRAFTED]:
        return limits[at.DRAFTED]  # type: ignore[no-any-return]
    return levels


@kernel(boolean(*arrays(i8, 2)))
def drafts_change(limits: Ints, pool: Ints) -> bool:
    """Return whether the next iteration may draft otherwise; several batches grow each by its own.

    That is what each of them draws.
    """
    several_at_once = limits[at.STAGES] * limits[at.RANKS] > 1
    return limits[at.DRAFTED] > 0 and (several_at_once or drafted(limits, pool) != pool[at.DRAFTS])  # type: ignore[no-any-return]


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def accepted(limits: Ints, drafts: int, who: int, done: int) -> int:
    """Return how many drafted tokens of a request that has `done` tokens are accepted."""
    drawn = mixed(mixed(mixed(limits[at.SEED] & LOW_BITS) ^ who) ^ done)
    count = 0
    for i in range(min(drafts, limits[at.DEPTH])):  # a branch that depends on a draw costs more
        count += drawn < limits[at.SURVIVE + i]
    return count


@kernel(several(i8, 2)(STATE, i8, i8, i8))
def draw(state: ReplicaState, replica: int, slot: int, made: int) -> tuple[int, int]:
    """Draw what a batch that was repeated so often accepts in the iteration that now ends.

    `tokens` of its decodes grow by what is accepted. Returns the blocks that these lack for one
    more iteration, more than there can be if a request ends, and by how many keys they grow.
    """
    request, batch, tokens = state.request, state.batch[slot], state.tokens[slot]
    limits, drafts = state.own[pool_of(state, replica)], state.pool[replica, at.DRAFTS]
    block, ahead, lacking, grown = limits[at.BLOCK], limits[at.DRAFTED], 0, 0
    for i in range(state.sizes[slot]):
        who = batch[i]
        prompt, done = request[who, at.PROMPT], request[who, at.DONE]
        if done <= prompt:
            continue
        end, done = prompt + request[who, at.OUTPUT], done + tokens[i] + made
        room = request[who, at.BLOCKS] * block
        needed = min(done - 1 + ahead, end)
        if made > 0 and needed > room:
            request[who, at.BLOCKS] = -(-needed // block)
            room = request[who, at.BLOCKS] * block
        more = min(end - done, accepted(limits, drafts, who, done))
        tokens[i] += more
        grown += 1 + more
        needed = min(done + more + ahead, end)
        if done + more == end:
            lacking += at.FOREVER
        elif needed > room:
            lacking += -(-needed // block) - request[who, at.BLOCKS]
    return lacking, grown
