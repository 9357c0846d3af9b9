"""A batch is static: the same requests run until the last of them ends, and nobody joins.

NVIDIA FasterTransformer, as served before iteration-level scheduling. Requests that have ended drop
out of later iterations without padding; memory is set aside as under `orca`. VIDUR keeps the blocks
of those that ended early for ever; here each gives back its own.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.admission import admit_reserving
from simulators.serving.engine.replica import SCHEDULE, View, kernel, schedule_request

RESERVES = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Continue the batch that just ended; if none of it is left, admit a new one."""
    if view.pool[at.IDLE] > 0:
        for i in range(view.pool[at.IDLE]):
            schedule_request(view, view.idle[i], 1)
        view.pool[at.IDLE] = 0
        return at.FOREVER
    admit_reserving(view)
    return 1
