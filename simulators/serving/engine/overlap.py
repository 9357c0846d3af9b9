"""When the tokens of a batch are seen where the host hands them on while the next batch runs.

With overlapped scheduling (SGLang, `scheduler.py`, `event_loop_overlap`) the host launches a batch
before it looks at what the last one made. Decodes replay a graph, which is launched at once; a
batch of prompts has none, and first tokens that one follows were measured to come at its end.
"""

from __future__ import annotations

from simulators.core.jit import f8, i8
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import kernel
from simulators.serving.engine.state import STATE, State


@kernel(i8(STATE, i8, f8, f8))
def show_late(state: State, replica: int, now: float, end: float) -> int:
    """Let first tokens of the batch that ended now be seen when that of prompts after it ends.

    Return how many have been seen.
    """
    times, idle = state.times, state.idle[replica]
    waiting = state.pool[replica, at.IDLE]
    for i in range(waiting):
        row = times[idle[i]]
        if row[at.LAST_END] == now and row[at.FIRST_TOKEN] == now:
            row[at.FIRST_TOKEN] = row[at.LAST_TOKEN] = end
    return waiting  # type: ignore[no-any-return]
