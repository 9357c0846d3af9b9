"""Every request and every batch of a run as tables, for those who want to look closer than metrics.

`python -m sweeper show NAME KEY --records FOLDER` writes them as Parquet.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simulators.serving.engine.replica import (
    ARRIVAL,
    COMPLETED,
    FIRST_TOKEN,
    LEFT,
    LONGEST_GAP,
    OUTPUT,
    PROMPT,
    REPLICA,
    RESTARTS,
    SCHEDULED,
    STALLED,
)
from simulators.serving.engine.state import LOG_COLUMNS, LOGGED, World

TIMES = {
    "arrival_s": ARRIVAL,
    "first_scheduled_s": SCHEDULED,
    "first_token_s": FIRST_TOKEN,
    "completed_s": COMPLETED,
    "left_s": LEFT,
    "stalled_s": STALLED,
    "longest_gap_s": LONGEST_GAP,
}
COUNTS = {"replica": REPLICA, "restarts": RESTARTS}


def request_table(world: World) -> pa.Table:
    """Return one row per request that was let in, in order of arrival.

    What never happened is null. `total_tokens` is prompt and output together, which a restart does
    not change.
    """
    total = world.request[:, PROMPT] + world.request[:, OUTPUT]
    columns = {
        name: pa.array(world.times[:, column], mask=world.times[:, column] < 0.0)
        for name, column in TIMES.items()
    }
    counts = {name: world.request[:, column] for name, column in COUNTS.items()}
    return pa.table({**columns, **counts, "total_tokens": total})


def batch_table(world: World) -> pa.Table:
    """Return one row per logged batch, in the order in which they were formed."""
    rows = world.log[: int(world.clock[LOGGED])]
    whole = [name for name in LOG_COLUMNS if not name.endswith("_s")]
    columns = {name: rows[:, i] for i, name in enumerate(LOG_COLUMNS)}
    return pa.table({n: c.astype(np.int64) if n in whole else c for n, c in columns.items()})
