"""Static batching: the same requests run until the last of them ends.

NVIDIA FasterTransformer, as served before iteration-level scheduling. Finished requests drop out of
later iterations without padding and free their blocks; memory is reserved as under `orca`.
"""

from __future__ import annotations

from simulators.serving.engine import replica as at
from simulators.serving.engine.kv_cache import admit_with_reservation
from simulators.serving.engine.replica import SCHEDULE, View, kernel, schedule_request

RESERVES = True


@kernel(SCHEDULE)
def schedule(_now: float, view: View) -> int:
    """Continue the batch that just ended; without running requests, admit a new one."""
    if view.pool[at.RUNNING] > 0:
        for i in range(view.pool[at.RUNNING]):
            schedule_request(view, view.running[i], 1)
        view.pool[at.RUNNING] = 0
        return at.UNTIL_CHANGED
    admit_with_reservation(view)
    return 1
