"""How many tokens of a sequence an iteration drafts, and accepts: drawn from its place in the run.

What is drawn depends on the seed, the request and its tokens so far alone, so that the same
sequence accepts the same drafts whatever runs beside it.
"""

from __future__ import annotations

from simulators.core.jit import Ints, arrays, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel

LOW_BITS = at.CERTAIN - 1


@kernel(i8(i8))
def mixed(bits: int) -> int:
    """Return 31 bits that look drawn, of other ones (multiply and shift; after Wellons, 2018)."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & LOW_BITS
    bits = ((bits ^ (bits >> 15)) * 0x46CA68B5) & LOW_BITS
    return bits ^ (bits >> 16)


@kernel(i8(*arrays(i8, 1), i8))
def drafted(limits: Ints, running: int) -> int:
    """Return the tokens drafted for each decode while so many requests run."""
    levels = 0
    while levels < limits[at.DEPTH] and running <= limits[at.DRAFT_UP_TO + levels]:
        levels += 1
    if levels > 0 and limits[at.DEPTH] < limits[at.DRAFTED]:
        return limits[at.DRAFTED]  # type: ignore[no-any-return]
    return levels


@kernel(i8(*arrays(i8, 1), i8, i8, i8))
def accepted(limits: Ints, drafts: int, who: int, done: int) -> int:
    """Return how many drafted tokens of a request that has `done` tokens are accepted.

    Where requests differ, each has shares of a power of its own: `u < S^g` where `u^(1/g) < S`.
    """
    mine = mixed(mixed(limits[at.SEED] & LOW_BITS) ^ who)
    drawn = mixed(mine ^ done)
    power = limits[at.DRAFT_POWERS + mixed(mine) % at.DRAFT_CLASSES]
    if power > 0:
        drawn = int(at.CERTAIN * (drawn / at.CERTAIN) ** (at.POWER_ONE / power))
    count = 0
    while count < drafts and drawn < limits[at.SURVIVE + count]:
        count += 1
    return count
