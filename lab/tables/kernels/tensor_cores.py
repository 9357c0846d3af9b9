"""Tensor-core products timed in loops on the GPU: `llm_kernels/gemm.parquet` and `mla_bmm.parquet`.

A weight matrix (n, k) was timed with tens of row counts that lie close together, so a hash of
(n, k) decides on which side of the split all its rows fall.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.tables.rows import (
    LOWER_QUARTER,
    Floats,
    Rows,
    Sizes,
    by_labels,
    first,
    group_of,
    is_host_timed,
    metered,
    numbers,
    read_table,
    tidy,
)
from simulators.composition.replica import FRAMEWORKS
from simulators.core.folder import read_toml
from simulators.kernels.levels import MEASURED
from simulators.workload.operators import Gemm

TABLE = "llm_kernels/gemm.parquet"
LATENT_TABLE = "llm_kernels/mla_bmm.parquet"
"""Batched products of latent attention: heads as the batch, before and after a decode step."""

PRODUCERS = (*FRAMEWORKS, "pytorch")
"""Frameworks whose products the table holds."""

SPLIT = "matrices (n, k, batch) by hash: three quarters fitted, one quarter held out with all rows"

FACTS = read_toml(Path(__file__).with_name("kernels.toml"))["tensor"]
KIND_OF, LATENT_KIND_OF, GPUS = FACTS["kinds"], FACTS["latent_kinds"], FACTS["gpus"]

KERNELS = {("vllm", "fp8"): "CutlassFP8ScaledMMLinearKernel"}
"""The kernel to use where a table mixes several."""


@functools.lru_cache(maxsize=1)
def read_tensor_rows(reference: Path, frameworks: tuple[str, ...]) -> tuple[Rows, ...]:
    """Return the rows of each known GPU, framework and kind; empty without tables."""
    found: list[Rows] = []
    if (file := reference / TABLE).is_file():
        found += plain_rows(read_table(file), frameworks)
    if (file := reference / LATENT_TABLE).is_file():
        found += _latent_rows(read_table(file), frameworks)
    return tuple(found)


def plain_rows(
    table: pa.Table, frameworks: Sequence[str], gpus: Mapping[str, str] = GPUS
) -> Iterator[Rows]:
    """Yield products with one weight matrix, by GPU, framework and kind.

    Args:
        table: with the columns of the reference table.
        frameworks: whose rows.
        gpus: data sheets by the table's names of GPUs.
    """
    for key, rows in _known(table, "gemm_dtype", frameworks, gpus, KIND_OF):
        if kernel := KERNELS.get(key[1:]):
            rows = rows.filter(pc.equal(rows["kernel"], kernel))
        if rows.num_rows and not is_host_timed(found := product_rows(rows, *key)):
            yield found


def own_products(table: pa.Table, gpu: str) -> list[Rows]:
    """Return the products in a file of one GPU's measurements, by framework and kind."""
    mine = table.filter(pc.equal(table["op"], "gemm"))
    if not mine.num_rows:
        return []
    frameworks, names = (mine[name].unique().to_pylist() for name in ("framework", "gpu"))
    return list(plain_rows(mine, frameworks, dict.fromkeys(names, gpu)))


def product_rows(table: pa.Table, gpu: str, framework: str, kind: str) -> Rows:
    """Return the rows of a table of one GPU, framework and kind."""
    m, n, k, latency_us = numbers(table, ("m", "n", "k", "latency_us")).values()
    labels = {"gpu": gpu, "framework": framework, "version": first(table, "version")}
    ones = np.ones(m.size)
    return products(m, n, k, ones, latency_us * 1e-6, dtype=kind, **labels, **metered(table))


def products(
    m: Floats, n: Floats, k: Floats, batch: Floats, seconds: Floats, *, dtype: str, **more: Any
) -> Rows:
    """Return products of given sizes as rows; `more` are other arguments of `tidy`."""
    return tidy(
        {"m": m, "n": n, "k": k, "batch": batch},
        seconds,
        group_of([n + 2**16 * (batch - 1.0), k], base=2**32),
        LOWER_QUARTER,
        kernel="gemm",
        dtype=dtype,
        operator_of=functools.partial(_product, dtype),
        **more,
    )


def sizes_of(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    """Return m, n, k and batch."""
    s = rows.sizes
    return s["m"], s["n"], s["k"], s["batch"]


def _product(kind: str, sizes: Sizes) -> Gemm:
    dtype, weight_dtype = MEASURED[kind]
    return Gemm(name="product", dtype=dtype, weight_dtype=weight_dtype, **sizes)  # type: ignore[arg-type]


def _latent_rows(table: pa.Table, frameworks: Sequence[str]) -> Iterator[Rows]:
    """Yield products with one matrix per head."""
    for key, rows in _known(table, "bmm_dtype", frameworks, GPUS, LATENT_KIND_OF):
        n, k = np.array([FACTS["latent_shapes"][op] for op in rows["op_name"].to_pylist()]).T
        m, batch, latency_us = numbers(rows, ("num_tokens", "num_heads", "latency_us")).values()
        labels = dict(zip(("gpu", "framework", "dtype"), key, strict=True))
        yield products(m, n, k, batch, latency_us * 1e-6, version=first(rows, "version"), **labels)


def _known(
    table: pa.Table,
    format_column: str,
    frameworks: Sequence[str],
    gpus: Mapping[str, str],
    kinds: Mapping[str, str],
) -> Iterator[tuple[tuple[str, str, str], pa.Table]]:
    """Yield the rows of each known GPU, framework and kind, in the order of those lists."""
    groups = dict(by_labels(table, "gpu", "framework", format_column))
    for gpu, framework, written in product(gpus, frameworks, kinds):
        if (gpu, framework, written) in groups:
            yield (gpus[gpu], framework, kinds[written]), groups[gpu, framework, written]
