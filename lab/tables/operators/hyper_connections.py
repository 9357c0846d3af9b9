"""Measured mixing of residual streams (hyper-connections), of newest releases.

A row timed both blocks of a layer: attention and feed-forward. Whatever kernels a framework chooses
by the number of tokens, "pre" collects streams to a block's input and "post" adds its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.kernels import NAMED, newest_releases
from lab.tables.rows import Rows, Sizes, by_labels, first, group_of, numbers, read_frame, tidy
from simulators.workload.operators import StreamMixing

TABLE = "llm_kernels_2026_11/mhc_module.parquet"
SIZES = ("num_tokens", "hidden_size", "hc_mult")
BLOCKS = 2.0
"""Blocks of a layer, all timed in one row: the column `num_sites`."""
WORDS = ("gpu", "framework", "version", "op_name")


def read_mixing_rows(reference: Path, gpu: str) -> Iterator[Rows]:
    """Yield the mixing kernels of one GPU by framework; nothing without the table."""
    file = reference / TABLE
    if not file.is_file():
        return
    frame = read_frame(file, gpu=NAMED.get(gpu, gpu)).with_columns(pl.col(WORDS).cast(pl.String))
    timed = newest_releases(frame).filter(pl.col("num_sites") == BLOCKS)
    for (framework, phase), rows in by_labels(timed.to_arrow(), "framework", "op_name"):
        sizes = numbers(rows, (*SIZES, "latency_us"))
        seconds = sizes.pop("latency_us") * 1e-6 / BLOCKS
        labels = {"gpu": gpu, "framework": framework, "version": first(rows, "version")}
        labels |= {"kernel": f"mixing_{phase}", "dtype": "bf16"}
        make = partial(_mixing, phase)
        yield tidy(sizes, seconds, group_of(sizes.values()), operator_of=make, **labels)


def _mixing(phase: str, sizes: Sizes) -> StreamMixing:
    tokens, hidden, streams = (np.asarray(sizes[name]) for name in SIZES)
    work: dict[str, Any] = {"tokens": tokens, "hidden": hidden, "streams": streams}
    return StreamMixing(name="stream_mixing", phase=phase, **work, dtype="bf16", in_loop=True)
