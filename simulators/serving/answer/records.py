"""Every request and every batch of a run, as tables.

`python -m sweeper show NAME KEY --records FOLDER` writes them as Parquet.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simulators.serving.engine import replica as at
from simulators.serving.engine.state import LOG_COLUMNS, ReplicaState

TIMES = {
    "first_scheduled_s": at.SCHEDULED,
    "first_token_s": at.FIRST_TOKEN,
    "completed_s": at.COMPLETED,
    "stalled_s": at.STALLED,
    "longest_gap_s": at.LONGEST_GAP,
}
COUNTS = {
    "replica": at.REPLICA,
    "preemptions_recompute": at.NUM_RECOMPUTES,
    "cached_tokens": at.NUM_CACHED,
}


def request_table(state: ReplicaState) -> pa.Table:
    """Return one row per admitted request, in order of arrival.

    Times of events that did not occur are null. `total_tokens` counts prompt and output; preemption
    by recomputation does not change it.
    """
    total = state.request[:, at.PROMPT] + state.request[:, at.OUTPUT]
    arrival_s = state.times[:, at.ARRIVAL]  # as the client saw it, which may lie before the run
    columns = {"arrival_s": pa.array(arrival_s)} | {
        name: pa.array(state.times[:, column], mask=state.times[:, column] < 0.0)
        for name, column in TIMES.items()
    }
    counts = {name: state.request[:, column] for name, column in COUNTS.items()}
    return pa.table({**columns, **counts, "total_tokens": total})


def batch_table(state: ReplicaState) -> pa.Table:
    """Return one row per logged batch, in the order in which they were formed."""
    rows = state.log[: int(state.clock[at.LOG_ROWS])]
    whole = [name for name in LOG_COLUMNS if not name.endswith("_s")]
    columns = {name: rows[:, i] for i, name in enumerate(LOG_COLUMNS)}
    return pa.table({n: c.astype(np.int64) if n in whole else c for n, c in columns.items()})
