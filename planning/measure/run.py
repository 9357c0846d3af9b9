"""Time kernels of this machine's GPU and write them as Parquet.

`latency_us` is the median of warm repeats, `ramped_us` that of calls in a row once clocks have
risen, `cold_us` that with evicted caches, and `timing` names the clock. The columns are those of
the tables that `sweeper calibrate` and the fits read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from planning.calibrate.timings import SIZES, read_table
from planning.measure.shapes import DTYPES, FAMILIES, Call, CallFamily, calls, calls_of
from planning.measure.torch_bench import Bench, Measurement, open_bench
from simulators.core.errors import UnknownNameError, UserError

UNLIMITED = 2**31
FORMATS = {"bf16": "bfloat16", "fp8": "fp8"}
"""Names of precisions in the reference tables of kernels."""
PRECISIONS = ("gemm_dtype", "attn_dtype", "kv_cache_dtype")
PRECISIONS_OF = {
    "gemm": PRECISIONS[:1],
    **dict.fromkeys(("prefill", "decode"), PRECISIONS[1:]),
}
TEXT = ("op", "gpu", "framework", "version", "kernel", "dtype", "split", *PRECISIONS, "timing")
ATTENTION = (
    *("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"),
    "window_size",
)
WHOLE = dict.fromkeys((*SIZES["linear"], "rows", "cols", *SIZES["conv"], *ATTENTION, "repeats"))
REAL = ("latency_us", "ramped_us", "cold_us", "power_w", "clock_mhz", "temperature_c")
COLUMNS = pa.schema(
    [(name, pa.string()) for name in TEXT]
    + [(name, pa.int64()) for name in WHOLE]
    + [(name, pa.float64()) for name in REAL]
)
"""Columns of the file; null where an operator has no such size."""


def measure(
    file: Path,
    *,
    ops: Sequence[str] = tuple(FAMILIES),
    dtypes: Sequence[str] = ("fp32", "bf16"),
    seconds: float = 60.0,
    shapes: int | None = None,
    largest: int = UNLIMITED,
    rows: Path | None = None,
    device: str = "cuda",
    gpu: str = "",
) -> tuple[str, Counter[str], Counter[str]]:
    """Time calls until the time is spent, and write them.

    Args:
        file: Parquet file.
        ops: families of operators, of `FAMILIES`.
        dtypes: precisions, of `DTYPES`.
        seconds: time to spend.
        shapes: calls of each family; None for as many as fit.
        largest: no size above this.
        rows: a file with the fp32 calls to time instead of families.
        device: `cuda` or `cpu`.
        gpu: name of the data sheet; the driver's name without.

    Returns:
        The GPU's name, the number of rows by operator, and of failed calls by reason.

    Raises:
        UserError: a name is unknown, there is no PyTorch or GPU, or no call could be timed.
    """
    if not file.resolve().parent.is_dir():
        raise UserError(f"{file}: the folder {file.parent} does not exist")
    if rows is not None:
        some = calls_of(read_table(rows, ("op",)), rows)
    else:
        designs = designs_of(ops, dtypes)
        some = islice(calls(designs, largest), shapes and shapes * len(designs))
    bench = open_bench(device)
    name = gpu or bench.name
    found, failed = measured_rows(bench, some, name, seconds)
    if not found:
        raise UserError("no call could be timed; try more --seconds, or a smaller --largest")
    pa.parquet.write_table(pa.Table.from_pylist(found, schema=COLUMNS), file)
    return name, Counter(str(row["op"]) for row in found), failed


def designs_of(ops: Sequence[str], dtypes: Sequence[str]) -> tuple[CallFamily, ...]:
    """Return the designs of calls to time for some families and precisions.

    >>> [design.ops for design in designs_of(["attention"], ["bf16"])]
    [('prefill',), ('decode',)]

    Raises:
        UserError: a family or precision is unknown, or none of the families has the precision.
    """
    for kind, names, known in (("family", ops, tuple(FAMILIES)), ("precision", dtypes, DTYPES)):
        for name in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    found = tuple(d for op in dict.fromkeys(ops) for d in FAMILIES[op] if d.dtype in dtypes)
    if not found:
        have = "; ".join(
            f"{op} in {', '.join(dict.fromkeys(d.dtype for d in FAMILIES[op]))}" for op in ops
        )
        raise UserError(f"nothing to time in {', '.join(dtypes)}: there is {have}")
    return found


def measured_rows(
    bench: Bench, some: Iterable[Call], name: str, seconds: float
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return one row per call timed within the budget, and the number of failures by reason."""
    rows: list[dict[str, Any]] = []
    failed: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for call in some:
        if time.monotonic() >= end:
            break
        try:
            rows.append(_row(call, bench.time(call), name, str(bench.torch.__version__)))
        except RuntimeError as error:
            failed[f"{call.op} {call.dtype}: {str(error).splitlines()[0]}"] += 1
    return rows, failed


def _row(call: Call, timed: Measurement, gpu: str, version: str) -> dict[str, Any]:
    """Return a measurement as a row of the file."""
    return {
        **call.sizes,
        **dict.fromkeys(PRECISIONS_OF.get(call.op, ()), FORMATS.get(call.dtype)),
        **{"op": call.op, "dtype": call.dtype, "gpu": gpu, "version": version},
        **{"framework": "pytorch", "kernel": "pytorch"},
        "split": "train",  # evenly spread shapes, not those of a model's layers
        "timing": timed.timing,
        "repeats": timed.repeats,
        **{f"{name}_us": 1e6 * getattr(timed, f"{name}_s") for name in ("ramped", "cold")},
        "latency_us": timed.warm_s * 1e6,
        **{name: getattr(timed, name) for name in ("power_w", "clock_mhz", "temperature_c")},
    }
