"""Prefix caching: shares of blocks found when a published trace is replayed, at each size.

The shares are derived from the traces themselves (Mooncake, FAST 2025; blocks of 512 tokens), so
ours must be the same up to their three digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.claims.lines import at_most
from lab.tables.modern.prefix_cache import HIT_RATIOS, TRACE, blocks_of, hit_ratios
from simulators.core.contract import Check
from simulators.serving.prefix.lru import hit_blocks

NEEDS = (HIT_RATIOS, TRACE.format("conversation"), TRACE.format("synthetic"))

DIGITS = 0.001


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield by trace how far the share of blocks found is off at the worst size."""
    for trace, published in hit_ratios(reference).items():
        blocks, ends = blocks_of(reference, trace)
        off = [
            abs(hit_blocks(blocks, ends, size).sum() / blocks.size - ratio)
            for size, ratio in published.items()
        ]
        sizes = ", ".join("all" if size is None else f"{size:,}" for size in published)
        yield at_most(
            f"prefix cache, share of blocks found, {trace}", float(max(off)), DIGITS, len(off),
            f"worst of caches of {sizes} blocks", unit="",
        )  # fmt: skip
