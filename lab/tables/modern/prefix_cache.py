"""Hit ratios of prefix caches by their size, and the traces that were replayed for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lab.tables.rows import read_records
from simulators.core.jit import Ints

HIT_RATIOS = "prefix_cache/lru_replay_hit_ratio.parquet"
TRACE = "traces/mooncake_fast25_{}.parquet"


def hit_ratios(reference: Path) -> Mapping[str, Mapping[int | None, float]]:
    """Return the share of blocks found by trace and by blocks held; None: all of them."""
    found: dict[str, dict[int | None, float]] = {}
    for row in read_records(reference / HIT_RATIOS):
        found.setdefault(row["trace"], {})[row["capacity_blocks"]] = row["block_hit_ratio"]
    return found


def blocks_of(reference: Path, trace: str) -> tuple[Ints, Ints]:
    """Return the ids of all blocks of a trace's prompts, and where each prompt ends among them."""
    ids = pq.read_table(reference / TRACE.format(trace))["hash_ids"].combine_chunks()
    return (
        ids.flatten().to_numpy().astype(np.int64),
        np.cumsum(ids.value_lengths().to_numpy(), dtype=np.int64),
    )
