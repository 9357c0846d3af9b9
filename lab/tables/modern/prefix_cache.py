"""Hit ratios of prefix caches by their size, and the traces that were replayed for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lab.tables.records import records
from simulators.core.jit import Ints

TRACE = "traces/mooncake_fast25_{}.parquet"


def hit_ratios(reference: Path) -> Mapping[str, Mapping[int | None, float]]:
    """Return the share of blocks that hit, by trace and by cached blocks; None: all blocks."""
    found: dict[str, dict[int | None, float]] = {}
    for row in records(reference, "prefix_hits"):
        found.setdefault(row.trace, {})[row.capacity_blocks] = row.block_hit_ratio
    return found


def blocks_of(reference: Path, trace: str) -> tuple[Ints, Ints]:
    """Return the block ids of all prompts of a trace, and the end of each prompt among them."""
    ids = pq.read_table(reference / TRACE.format(trace))["hash_ids"].combine_chunks()
    return (
        ids.flatten().to_numpy().astype(np.int64),
        np.cumsum(ids.value_lengths().to_numpy(), dtype=np.int64),
    )
