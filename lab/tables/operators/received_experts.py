"""Measured layers of experts after DeepEP's exchanges: SGLang's calls of DeepGEMM.

`num_tokens` are those of all ranks. The benchmark of prompts sorts all of them on the timed rank
and fills one expert after another, each with a block of rows; that of decodes spreads rows evenly.
Eager calls below the host's own time are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.kernels import NAMED, newest_releases
from lab.tables.rows import Bools, Rows, Sizes, first, group_of, numbers, read_frame, tidy
from simulators.kernels.families.experts import CONTIGUOUS, MASKED, ExpertSizes
from simulators.workload.operators import GroupedGemm

TABLES = {
    MASKED: "llm_kernels_2026_11/wideep_generation_moe.parquet",
    CONTIGUOUS: "llm_kernels_2026_11/wideep_context_moe.parquet",
}
GPUS = ("h100_sxm", "b200_sxm", "gb200")
SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_ep_size")
WORDS = ("gpu", "framework", "version", "distribution")
EVEN, DTYPE = "uniform", "fp8_block"
BLOCK = {MASKED: 1.0, CONTIGUOUS: 128.0}
"""Rows that activate one more expert."""
FEW_PER_RANK, SHOWN = 16.0, 1.5
"""Tokens of a rank for which the host's calls take longer, and the multiple of their time that the
rest takes at least."""


def read_received_experts(reference: Path, gpu: str) -> Iterator[Rows]:
    """Yield the evenly spread layers of one GPU by kernel; nothing without the tables."""
    for kernel, table in TABLES.items():
        if not (file := reference / table).is_file():
            continue
        frame = read_frame(file, gpu=NAMED.get(gpu, gpu)).with_columns(
            pl.col(WORDS).cast(pl.String)
        )
        frame = newest_releases(frame.filter(pl.col("distribution") == EVEN))
        if kernel == CONTIGUOUS:
            few = pl.col("num_tokens") <= FEW_PER_RANK * pl.col("moe_ep_size")
            host = frame.filter(few)["latency_us"].median()
            frame = frame.filter(pl.col("latency_us") > SHOWN * pl.lit(host))
        rows = frame.to_arrow()
        sizes = numbers(rows, (*SIZES, "latency_us"))
        seconds = sizes.pop("latency_us") * 1e-6
        labels: dict[str, Any] = {
            "gpu": gpu,
            "framework": "sglang",
            "version": first(rows, "version"),
        }
        labels |= {"kernel": kernel, "dtype": DTYPE}
        make = partial(products_of, kernel)
        yield tidy(sizes, seconds, group_of(sizes.values()), operator_of=make, **labels)


def products_of(kernel: str, sizes: Sizes) -> tuple[ExpertSizes, ExpertSizes]:
    """Return the two products of the layers of a kernel."""
    tokens, hidden, width, chosen, experts, ranks = (np.asarray(sizes[name]) for name in SIZES)
    rows = tokens * chosen / ranks
    up = ExpertSizes(
        tokens=tokens,
        routed=tokens,
        rows=rows,
        activated=np.minimum(experts / ranks, np.maximum(rows / BLOCK[kernel], 1.0)),
        experts=experts / ranks,
        chosen=chosen / ranks,
        width=width,
        n=2.0 * width,
        k=hidden,
    )
    return up, replace(up, n=hidden, k=width)


def layers_of(rows: Rows) -> Iterator[tuple[Bools, tuple[GroupedGemm, GroupedGemm]]]:
    """Yield both products of all layers with equal ranks, and a mask of their rows.

    Every token is received, as in the benchmark.
    """
    masked = np.inf if rows.kernel == MASKED else 0.0
    for ranks in np.unique(rows.sizes["moe_ep_size"]):
        mine = rows.sizes["moe_ep_size"] == ranks
        tokens, hidden, width, chosen, experts, _ = (rows.sizes[n][mine] for n in SIZES)
        shared: dict[str, Any] = {
            "tokens": tokens,
            "experts": int(experts[0] / ranks),
            "top_k": float(chosen[0] / ranks),
            "dtype": "fp8",
            "weight_dtype": DTYPE,
            "ranks": float(ranks),
            "received": tokens,
            "masked_tokens": masked,
        }
        up = GroupedGemm(name="experts_up", n=2.0 * width, k=hidden, **shared)
        yield mine, (up, replace(up, name="experts_down", n=hidden, k=width))
