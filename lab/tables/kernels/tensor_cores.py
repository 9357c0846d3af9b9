"""Measured tensor-core products as columns; weight matrices are held out whole.

The layout is that of the reference table `llm_kernels/gemm.parquet`: `gpu`, `framework`, `kernel`,
`gemm_dtype`, sizes and `latency_us`, timed in a loop on the GPU. A weight matrix (n, k) was timed
with tens of row counts that lie close together, so a hash of (n, k) decides which side all of its
rows fall on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from lab.tables.kernels.fp32_kernels import fraction
from simulators.kernels.families.tensor_cores import Sizes

Floats = NDArray[np.float64]

TABLE = "llm_kernels/gemm.parquet"

LATENT_TABLE = "llm_kernels/mla_bmm.parquet"
"""Batched products of latent attention: heads as the batch, before and after a decode step."""

SPLIT = "matrices (n, k, batch) by hash: three quarters fitted, one quarter held out with all rows"

HELD_OUT = 0.25
"""Part of the weight matrices that nothing is fitted to."""

FORMATS = {
    "bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "fp4": "nvfp4", "int8": "sq",
    "w8a16": "int8_wo", "w4a16": "int4_wo",
}  # fmt: skip
"""Names of the kinds in the table."""

LATENT_FORMATS = {"bmm": "bfloat16", "bmm_fp8": "fp8"}
"""Names of the batched kinds in theirs."""

LATENT_SHAPES = {"mla_gen_pre": (512.0, 128.0), "mla_gen_post": (128.0, 512.0)}
"""Columns and inner length: queries enter the 512 numbers of a latent, results leave them."""

KERNELS = {("vllm", "fp8"): "CutlassFP8ScaledMMLinearKernel"}
"""Where a table mixes kernels, the one that is meant."""

HOST_BOUND = {("vllm", "fp8_block")}
"""Tables whose shortest rows take longer than 50 us: the host was timed, not the kernel."""

BOARDS = {
    "a100_sxm": "a100_sxm", "h100_sxm": "h100_sxm", "h200_sxm": "h200_sxm",
    "b200_sxm": "b200_sxm", "gb200": "gb200", "rtx_pro_6000_server": "rtx_pro_6000",
}  # fmt: skip
"""Names of the boards in the table, and those of their data sheets."""


@dataclass(frozen=True)
class TensorRows:
    """Rows of one board, framework and kind."""

    gpu: str
    framework: str
    kind: str
    version: str
    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    seconds: Floats
    order: Floats | None = None  # the place of each row, where a hash would leave a side empty

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def sizes(self) -> Sizes:
        """Sizes as products have them."""
        return self.m, self.n, self.k, self.batch

    @property
    def place(self) -> Floats:
        """A number in [0, 1) per weight matrix, or batch of them, that looks drawn."""
        if self.order is not None:
            return self.order
        n, k, more = (size.astype(np.uint64) for size in (self.n, self.k, self.batch - 1.0))
        return fraction(n * np.uint64(2**32) + more * np.uint64(2**48) + k)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows that nothing is fitted to."""
        return np.asarray(self.place < HELD_OUT)

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> TensorRows:
        """Return some of the rows."""
        m, n, k, batch, seconds = (column[rows] for column in (*self.sizes, self.seconds))
        order = None if self.order is None else self.order[rows]
        return replace(self, m=m, n=n, k=k, batch=batch, seconds=seconds, order=order)


@functools.lru_cache(maxsize=1)
def read_tensor_rows(reference: Path, frameworks: tuple[str, ...]) -> tuple[TensorRows, ...]:
    """Return every board, framework and kind of the tables that is known; empty without any."""
    found = []
    if (file := reference / TABLE).is_file():
        found += plain_rows(pa.parquet.read_table(file).unify_dictionaries(), frameworks)
    if (file := reference / LATENT_TABLE).is_file():
        found += _latent(pa.parquet.read_table(file).unify_dictionaries(), frameworks)
    return tuple(found)


def plain_rows(
    table: pa.Table, frameworks: Sequence[str], boards: Mapping[str, str] = BOARDS
) -> list[TensorRows]:
    """Return products with one weight matrix, by board, framework and kind.

    Args:
        table: with the columns of the reference table.
        frameworks: whose rows.
        boards: what the table calls each board, and the name of its data sheet.
    """
    found = []
    for name, gpu in boards.items():
        mine = table.filter(pc.equal(table["gpu"], name))
        for framework in frameworks:
            theirs = mine.filter(pc.equal(mine["framework"], framework))
            for kind, label in FORMATS.items():
                if (framework, kind) in HOST_BOUND:
                    continue
                rows = theirs.filter(pc.equal(theirs["gemm_dtype"], label))
                if kernel := KERNELS.get((framework, kind)):
                    rows = rows.filter(pc.equal(rows["kernel"], kernel))
                if rows.num_rows:
                    found.append(_columns(rows, gpu, framework, kind))
    return found


def own_products(table: pa.Table, gpu: str) -> list[TensorRows]:
    """Return the products in a file of one device's measurements, by framework and kind."""
    mine = table.filter(pc.equal(table["op"], "gemm"))
    if not mine.num_rows:
        return []
    frameworks = mine["framework"].unique().to_pylist()
    return plain_rows(mine, frameworks, dict.fromkeys(mine["gpu"].unique().to_pylist(), gpu))


def _latent(table: pa.Table, frameworks: tuple[str, ...]) -> list[TensorRows]:
    """Return products with one matrix per head."""
    found = []
    for name, gpu in BOARDS.items():
        for framework in frameworks:
            for kind, label in LATENT_FORMATS.items():
                wanted = {"gpu": name, "framework": framework, "bmm_dtype": label}
                rows = table
                for column, value in wanted.items():
                    rows = rows.filter(pc.equal(rows[column], value))
                if not rows.num_rows:
                    continue
                shapes = np.array([LATENT_SHAPES[op] for op in rows["op_name"].to_pylist()])
                m, batch, latency_us = (
                    rows[column].to_numpy().astype(np.float64)
                    for column in ("num_tokens", "num_heads", "latency_us")
                )
                version = str(rows["version"][0].as_py())
                sizes = (m, shapes[:, 0], shapes[:, 1], batch)
                found.append(TensorRows(gpu, framework, kind, version, *sizes, latency_us * 1e-6))
    return found


def _columns(table: pa.Table, gpu: str, framework: str, kind: str) -> TensorRows:
    m, n, k, latency_us = (
        table[name].to_numpy().astype(np.float64) for name in ("m", "n", "k", "latency_us")
    )
    version = str(table["version"][0].as_py())
    return TensorRows(gpu, framework, kind, version, m, n, k, np.ones(m.size), latency_us * 1e-6)
