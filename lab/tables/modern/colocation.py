"""Slowdown of LLaMA passes on a share of the SMs, as MuxServe's authors timed them under MPS.

Their file names no GPU; their paper has A100s of 80 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.tables.rows import Record, read_records

PROFILE = "colocation/muxserve_mps_latency.parquet"
GPU = "a100_sxm"
WHOLE = 100.0
COLUMNS = ("share", "batch", "tokens", "prefill", "decode")


def slowdowns(reference: Path) -> Iterator[Record]:
    """Yield the passes of each model and number of GPUs that were also timed on all SMs.

    `share`, `batch`, `tokens` and the slowdowns of `prefill` and `decode` are arrays, with NaN
    where one of the two passes was not timed.
    """
    groups: dict[tuple[str, int], list[Record]] = {}
    for row in read_records(reference / PROFILE):
        groups.setdefault((row.model, int(row.n_gpus)), []).append(row)
    for (model, gpus), rows in sorted(groups.items()):
        whole = {(row.batch, row.seq_len): row for row in rows if row.mps_pct == WHOLE}
        pairs = [
            (row, whole[row.batch, row.seq_len])
            for row in rows
            if row.mps_pct != WHOLE and (row.batch, row.seq_len) in whole
        ]
        found = [
            (
                row.mps_pct / WHOLE,
                row.batch,
                row.seq_len,
                _ratio(row.prefill_ms, base.prefill_ms),
                _ratio(row.decode_ms, base.decode_ms),
            )
            for row, base in pairs
        ]
        columns = np.array(found, np.float64).reshape(-1, len(COLUMNS)).T
        yield Record(zip(COLUMNS, columns, strict=True), model=model, gpus=gpus)


def _ratio(value: float | None, base: float | None) -> float:
    return np.nan if value is None or base is None else value / base
