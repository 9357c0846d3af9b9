"""Attention of prompts, chunks and mixed batches, and layers of experts, on shapes held out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.kernels.frames import by_entry, entry_for, own_entry
from lab.claims.predictions import together
from lab.tables.kernels.expert_layers import FRONTIER_GPUS, SERVING_GPUS, read_layers
from lab.tables.kernels.fused_kernels import GPUS, read_measured
from lab.tables.kernels.prompt_chunks import CHUNK_GPUS, MIXED_GPUS, read_chunks
from lab.tables.rows import BANDED, Rows

BATCHES = {"prefill": "prefix chunks", "decode": "decodes of those tables"}


def prompts(reference: Path) -> pl.DataFrame:
    """Return held-out prompts of GPUs and engines with numbers of their own."""
    return together(
        by_entry(part.where(part.held_out), entry)
        for kernel in ("prefill", "mla_prefill")
        for gpu in GPUS
        for part in read_measured(reference, gpu, kernel)
        if (entry := own_entry(part)) is not None and part.held_out.any()
    )


def unseen(reference: Path) -> pl.DataFrame:
    """Return prompts, chunks and mixed batches that neither fits nor intervals have seen."""
    return together(
        by_entry(part.where(part.bucket >= BANDED), entry).with_columns(kernel=pl.lit(kernel))
        for kernel in ("prefill", "mla_prefill", "mixed")
        for gpu in GPUS
        for part in read_measured(reference, gpu, kernel) + read_chunks(reference, gpu, kernel)
        if (entry := own_entry(part)) is not None and (part.bucket >= BANDED).any()
    )


def batches(reference: Path) -> pl.DataFrame:
    """Return held-out chunks on a prefix, decodes and mixed batches, by whoever's numbers apply."""
    return together(_batches(reference))


def _batches(reference: Path) -> Iterator[pl.DataFrame]:
    for gpu in dict.fromkeys((*CHUNK_GPUS, *MIXED_GPUS)):
        for kernel in ("prefill", "decode", "mixed"):
            for part in read_chunks(reference, gpu, kernel):
                rows = part.where(part.held_out)
                if kernel != "mixed":
                    yield _by_any(rows, BATCHES[kernel])
                    continue
                mixed = rows.sizes["decodes"] > 0
                yield _by_any(rows.where(mixed), "mixed batches")
                yield _by_any(rows.where(~mixed), "prefix chunks as mixed batches")


def expert_layers(reference: Path) -> pl.DataFrame:
    """Return layers of experts of other tables: held-out rows of those that were fitted to."""
    frames = []
    for gpu in dict.fromkeys((*FRONTIER_GPUS, *SERVING_GPUS)):
        for part in read_layers(reference, gpu):
            rows = part.where(part.held_out) if gpu in FRONTIER_GPUS else part
            tokens = np.asarray(rows.sizes["num_tokens"])
            frames.append(_by_any(rows, "layers of experts", num_tokens=tokens))
    return together(frames)


def _by_any(rows: Rows, batch: str, **cells: object) -> pl.DataFrame:
    entry = entry_for(rows)
    assert entry is not None, f"no numbers apply to {rows.name}"
    return by_entry(rows, entry, batch=batch, numbers_of=entry.framework, **cells)
