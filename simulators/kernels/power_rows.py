"""Measured mean watts of kernels in loops; shapes are held out whole.

The layout is that of the reference tables `llm_kernels/*_power.parquet`: the columns of the tables
of times, and `power_w`, which the board's own meter showed while the kernel ran again and again.
A matrix (n, k) or an attention shape falls wholly on one side of the split.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from simulators.kernels.measured_fused import FOLDER, SHAPE, Measured, attention_of
from simulators.kernels.measurements import fraction
from simulators.kernels.tensor import MEASURED
from simulators.kernels.tensor_rows import BOARDS, FORMATS
from simulators.workload.operators import Attention, Gemm

Floats = NDArray[np.float64]

TABLES = {
    "gemm": "gemm_power", "prefill": "context_attention_power",
    "decode": "generation_attention_power",
}  # fmt: skip

SHAPES = {"gemm": ("n", "k"), "prefill": SHAPE["attention"], "decode": SHAPE["attention"]}
"""Columns that say which rows belong together."""

HELD_OUT = {"gemm": 0.25, "prefill": 0.5, "decode": 0.5}
"""Parts of the shapes that nothing is fitted to, as for the times of the same kernels."""

SPLIT = "gemm by (n, k), a quarter held out; attention by shape, half held out"

DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


@dataclass(frozen=True)
class PowerRows:
    """Rows of one board and kernel, in one pair of formats."""

    gpu: str
    kernel: str  # gemm, prefill, decode
    kind: str  # of the product; of attention and cache
    version: str
    sizes: Mapping[str, Floats]
    seconds: Floats
    watts: Floats
    group: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows that nothing is fitted to."""
        return np.asarray(fraction(self.group) < HELD_OUT[self.kernel])

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> PowerRows:
        """Return some of the rows."""
        return replace(
            self,
            sizes={name: column[rows] for name, column in self.sizes.items()},
            seconds=self.seconds[rows],
            watts=self.watts[rows],
            group=self.group[rows],
        )

    @property
    def meter(self) -> str:
        """The calibration's name of these rows: a product's kind, or attention in all formats."""
        return f"gemm_{self.kind}" if self.kernel == "gemm" else self.kernel

    @property
    def operator(self) -> Gemm | Attention:
        """Rows as one operator whose sizes are columns."""
        if self.kernel == "gemm":
            dtype, weight_dtype = MEASURED[self.kind]
            m, n, k = (self.sizes[name] for name in ("m", "n", "k"))
            return Gemm(name="product", m=m, n=n, k=k, dtype=dtype, weight_dtype=weight_dtype)
        timed = Measured(
            self.gpu, "", self.kernel, self.kind, dict(self.sizes), self.seconds, self.group
        )
        return attention_of(timed)


@functools.lru_cache(maxsize=1)
def read_power_rows(reference: Path) -> tuple[PowerRows, ...]:
    """Return every board, kernel and pair of formats of the tables; empty without one."""
    found: list[PowerRows] = []
    for kernel, name in TABLES.items():
        file = reference / FOLDER / f"{name}.parquet"
        if file.is_file():
            found += _parts(pa.parquet.read_table(file), kernel)
    return tuple(found)


def power_tables(reference: Path) -> list[Path]:
    """Return the tables there are."""
    files = (reference / FOLDER / f"{name}.parquet" for name in TABLES.values())
    return [file for file in files if file.is_file()]


def _parts(table: pa.Table, kernel: str) -> list[PowerRows]:
    """Return one part per board and pair of formats."""
    kinds = {label: kind for kind, label in FORMATS.items()} if kernel == "gemm" else DTYPES
    formats = ("gemm_dtype",) if kernel == "gemm" else ("attn_dtype", "kv_cache_dtype")
    labels = {name: np.array(table[name].to_pylist()) for name in ("gpu", "version", *formats)}
    names = ("m", "n", "k") if kernel == "gemm" else SHAPES[kernel]
    sizes = {name: table[name].to_numpy().astype(np.float64) for name in names}
    seconds = table["latency_us"].to_numpy().astype(np.float64) * 1e-6
    watts = table["power_w"].to_numpy().astype(np.float64)
    group = np.zeros(seconds.size, np.uint64)
    for name in SHAPES[kernel]:
        group = group * np.uint64(1_000_003) + sizes[name].astype(np.uint64)
    keys = np.stack([labels[name] for name in ("gpu", *formats)], axis=1)
    parts = []
    for key in np.unique(keys, axis=0):
        gpu, *pair = (str(word) for word in key)
        if gpu in BOARDS and all(word in kinds for word in pair):
            mine = np.all(keys == key, axis=1)
            kind = "_".join(kinds[word] for word in pair)
            version = str(labels["version"][mine][0])
            whole = PowerRows(BOARDS[gpu], kernel, kind, version, sizes, seconds, watts, group)
            parts.append(whole.where(mine))
    return parts
