"""Mean watts of kernels in loops: the reference tables `llm_kernels/*_power.parquet`.

They have the columns of the tables of times, and `power_w`, which the GPU's own meter showed while
the kernel ran again and again. The versions are older than in the tables of times.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pyarrow as pa

from lab.tables.kernels.fused_kernels import FOLDER, kernel_rows
from lab.tables.kernels.tensor_cores import GPUS, KIND_OF, product_rows
from lab.tables.rows import Rows, by_labels, read_table

TABLES = {
    "gemm": "gemm_power",
    "prefill": "context_attention_power",
    "decode": "generation_attention_power",
}
"""Tables of times and watts by kernel."""

SPLIT = "gemm by (n, k), a quarter held out; attention by shape, half held out"

DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


@functools.lru_cache(maxsize=1)
def read_power_rows(reference: Path) -> tuple[Rows, ...]:
    """Return the rows of each GPU, kernel and pair of formats; empty without tables."""
    return tuple(
        rows
        for kernel, name in TABLES.items()
        if (file := reference / FOLDER / f"{name}.parquet").is_file()
        for rows in _parts(read_table(file), kernel)
    )


def power_tables(reference: Path) -> list[str]:
    """Return the names of the tables there are."""
    names = [f"{FOLDER}/{name}.parquet" for name in TABLES.values()]
    return [name for name in names if (reference / name).is_file()]


def meter_name(rows: Rows) -> str:
    """Return the name of a power meter: of a kind of product, or of attention in all formats."""
    return f"gemm_{rows.dtype}" if rows.kernel == "gemm" else rows.kernel


def _parts(table: pa.Table, kernel: str) -> list[Rows]:
    """Return the rows by GPU, framework, version and formats."""
    is_product = kernel == "gemm"
    columns = ("gemm_dtype",) if is_product else ("attn_dtype", "kv_cache_dtype")
    known = KIND_OF if is_product else DTYPES
    found = []
    for key, rows in by_labels(table, "gpu", "framework", "version", *columns):
        gpu, framework, _, *formats = key
        if gpu in GPUS and all(name in known for name in formats):
            of = (GPUS[gpu], framework, "_".join(known[name] for name in formats))
            found.append(product_rows(rows, *of) if is_product else kernel_rows(rows, kernel, *of))
    return found
