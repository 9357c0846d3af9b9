"""Prefix caching: shares of blocks found when a published trace is replayed, at each size.

The shares are derived from the traces themselves (Mooncake, FAST 2025; blocks of 512 tokens), so
ours must be the same up to their three digits. The engine's own account of KV blocks is asked as
well: one request after another through a replica of so many blocks. It forgets the end of a prompt
before its beginning, as engines do, where the replay forgets the beginning first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most
from lab.parity.lru_prefix_cache import hit_blocks
from lab.tables.modern.prefix_cache import HIT_RATIOS, TRACE, blocks_of, hit_ratios
from simulators.core.contract import Check
from simulators.core.jit import Ints
from simulators.serving.demand.prefixes import of_hashes
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import Limits
from simulators.serving.engine.policies import load_router, load_scheduler
from simulators.serving.engine.service import Engine, serve

NEEDS = (HIT_RATIOS, TRACE.format("conversation"), TRACE.format("synthetic"))

DIGITS, CLOSE = 0.001, 0.01
HASHED = 512
"""Tokens of a block of these traces."""


@at.kernel(at.PRICE)
def unit_price(_step: Ints, _shape: Ints, _table: Ints, price: Ints) -> float:
    """Return one second for whatever batch."""
    price[:] = 0.0
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = price[at.LAST_STAGE_S] = price[at.BASE_S] = 1.0
    price[at.UNTIL_KV] = np.inf
    return 1.0


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield by trace how far the share of blocks found is off at the worst size."""
    for trace, published in hit_ratios(reference).items():
        blocks, ends = blocks_of(reference, trace)
        sizes = ", ".join("all" if size is None else f"{size:,}" for size in published)
        note = f"worst of caches of {sizes} blocks"
        for how, found, limit in (
            ("", hit_blocks, DIGITS),
            (" by the engine's account", found_by_engine, CLOSE),
        ):
            off = [
                abs(found(blocks, ends, size).sum() / blocks.size - ratio)
                for size, ratio in published.items()
            ]
            yield at_most(
                f"prefix cache, share of blocks found{how}, {trace}",
                float(max(off)),
                limit,
                len(off),
                note,
                unit="",
            )


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
    limits = Limits(
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
        Engine(load_scheduler("vllm_v1"), load_router("round_robin"), unit_price),
        limits,
        asked,
        replicas=1,
        shape=np.zeros(1, np.int64),
        table=np.zeros(1),
    )
    found: Ints = state.request[:, at.CACHED] // HASHED
    return found
