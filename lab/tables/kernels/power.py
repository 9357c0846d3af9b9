"""Measured mean watts of kernels in loops; shapes are held out whole.

The layout is that of the reference tables `llm_kernels/*_power.parquet`: the columns of the tables
of times, and `power_w`, which the board's own meter showed while the kernel ran again and again.
They are of earlier versions than the tables of times, which can be read the same way. A matrix
(n, k) or an attention shape falls wholly on one side of the split, and on the same side as in the
fits of times.
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

from lab.tables.kernels import fused_kernels as measured_fused
from lab.tables.kernels import tensor_cores as tensor_rows
from lab.tables.kernels.fp32_kernels import fraction
from lab.tables.kernels.fused_kernels import FOLDER, SHAPE, Measured, attention_of
from lab.tables.kernels.tensor_cores import BOARDS, FORMATS
from simulators.kernels.families.tensor_cores import MEASURED
from simulators.workload.operators import Attention, Gemm

Floats = NDArray[np.float64]

TABLES = {
    "gemm": "gemm_power", "prefill": "context_attention_power",
    "decode": "generation_attention_power",
}  # fmt: skip

SHAPES = {"gemm": ("n", "k"), "prefill": SHAPE["attention"], "decode": SHAPE["attention"]}
"""Columns that say which rows belong together."""

SPLIT = "gemm by (n, k), a quarter held out; attention by shape, half held out"

DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


TIMES = {
    "gemm": "gemm", "prefill": "context_attention", "decode": "generation_attention",
}  # fmt: skip
"""Tables of the same kernels with times alone."""


@dataclass(frozen=True)
class PowerRows:
    """Rows of one board, framework, version and kernel, in one pair of formats."""

    gpu: str
    framework: str
    kernel: str  # gemm, prefill, decode
    kind: str  # of the product; of attention and cache
    version: str
    sizes: Mapping[str, Floats]
    seconds: Floats
    watts: Floats  # not a number where none were metered
    group: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows that nothing is fitted to."""
        place = fraction(self.group)
        if self.kernel == "gemm":
            return np.asarray(place < tensor_rows.HELD_OUT)
        return np.asarray(place >= measured_fused.HELD_OUT)

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


def read_times(reference: Path, kernel: str, gpu: str, framework: str) -> list[PowerRows]:
    """Return rows of the table of times of one board and framework, by version and formats."""
    file = reference / FOLDER / f"{TIMES[kernel]}.parquet"
    if not file.is_file():
        return []
    named = {ours: theirs for theirs, ours in BOARDS.items()}
    wanted = [("gpu", "==", named[gpu]), ("framework", "==", framework)]
    return _parts(pa.parquet.read_table(file, filters=wanted), kernel)


def power_tables(reference: Path) -> list[Path]:
    """Return the tables there are."""
    files = (reference / FOLDER / f"{name}.parquet" for name in TABLES.values())
    return [file for file in files if file.is_file()]


def _parts(table: pa.Table, kernel: str) -> list[PowerRows]:
    """Return one part per board, framework, version and pair of formats."""
    kinds = {label: kind for kind, label in FORMATS.items()} if kernel == "gemm" else DTYPES
    formats = ("gemm_dtype",) if kernel == "gemm" else ("attn_dtype", "kv_cache_dtype")
    names = ("m", "n", "k") if kernel == "gemm" else SHAPES[kernel]
    sizes = {name: table[name].to_numpy().astype(np.float64) for name in names}
    seconds = table["latency_us"].to_numpy().astype(np.float64) * 1e-6
    metered = "power_w" in table.column_names
    watts = table["power_w"].to_numpy() if metered else np.full(seconds.size, np.nan)
    group = np.zeros(seconds.size, np.uint64)
    step = np.uint64(2**32 if kernel == "gemm" else 1_000_003)
    for name in SHAPES[kernel]:
        group = group * step + sizes[name].astype(np.uint64)
    labels = ("gpu", "framework", "version", *formats)
    keys = np.stack([np.array(table[name].to_pylist()) for name in labels], axis=1)
    parts = []
    for key in np.unique(keys, axis=0):
        gpu, framework, version, *pair = (str(word) for word in key)
        if gpu in BOARDS and all(word in kinds for word in pair):
            whole = PowerRows(
                BOARDS[gpu], framework, kernel, "_".join(kinds[word] for word in pair), version,
                sizes, seconds, watts.astype(np.float64), group,
            )  # fmt: skip
            parts.append(whole.where(np.all(keys == key, axis=1)))
    return parts
