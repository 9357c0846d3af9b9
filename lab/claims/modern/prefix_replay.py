"""Prefix caching: shares of KV blocks found when a published trace is replayed, at each size.

Published shares are derived from the traces themselves (Mooncake, FAST 2025; blocks of 512 tokens).
Ours are the engine's: one request after another through a replica with so many blocks. It evicts
the end of a prompt before its beginning, as engines do; the derivation evicts the beginning first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from lab.tables.modern.prefix_cache import blocks_of, hit_ratios
from simulators.core.jit import Ints
from simulators.serving.demand.prefixes import of_hashes
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.engine.policies import load_router, load_scheduler
from simulators.serving.engine.service import EngineKernels, serve

HASHED = 512
"""Tokens of a block of these traces."""


@at.kernel(at.PRICE)
def unit_price(_step: Ints, _shape: Ints, _table: Ints, price: Ints) -> float:
    """Return one second for whatever batch."""
    price[:] = 0.0
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = price[at.LAST_STAGE_S] = price[at.BASE_S] = 1.0
    price[at.UNTIL_KV] = np.inf
    return 1.0


def shares_found(reference: Path) -> pl.DataFrame:
    """Return the share of blocks found by trace and size of the cache."""
    rows = []
    for trace, published in hit_ratios(reference).items():
        blocks, ends = blocks_of(reference, trace)
        for size, measured in published.items():
            found = float(found_by_engine(blocks, ends, size).sum() / blocks.size)
            label = "all blocks" if size is None else f"{size:,} blocks"
            cells = {"trace": trace, "label": label, "measured": measured}
            rows.append({**cells, "predicted": found})
    return pl.DataFrame(rows)


def found_by_engine(blocks: Ints, ends: Ints, size: int | None) -> Ints:
    """Return how many blocks each prompt finds in an engine that serves one after another.

    Each has one token more than its blocks, which is computed in a block of its own.
    """
    counts = np.diff(ends, prepend=0)
    prompt, output = HASHED * counts + 1, np.ones(counts.size, np.int64)
    asked = Requests(
        arrival_s=2.0 * np.arange(counts.size, dtype=np.float64),
        prompt_tokens=prompt,
        output_tokens=output,
        draws=np.zeros((counts.size, 2)),
        prefixes=of_hashes(blocks, ends, HASHED, prompt, output),
    )
    limits = ReplicaLimits(
        blocks=(blocks.size if size is None else size) + 1,
        block_size=HASHED,
        watermark=0.0,
        seats=1,
        batch_tokens=int(prompt.max()),
        chunk=int(prompt.max()),
        most_tokens=int(prompt.max()) + 1,
        caches=True,
    )
    state = serve(
        EngineKernels(load_scheduler("vllm_v1"), load_router("round_robin"), unit_price),
        limits,
        asked,
        replicas=1,
        shape=np.zeros(1, np.int64),
        table=np.zeros(1),
    )
    found: Ints = state.request[:, at.CACHED] // HASHED
    return found
