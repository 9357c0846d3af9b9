"""Time this machine's GPU, or say how far our answers are from what was timed on it.

`--write FILE` times PyTorch's kernels, as many shapes as fit in `--seconds`, and writes one Parquet
file with the columns of the reference tables, which the fits read:

    python -m lab.profiler --write mine.parquet
    python -m lab.profiler --compare mine.parquet
    python -m lab.fits fp32_kernels --device l40s --measured mine.parquet
    python -m lab.fits tensor_cores --device l40s --measured mine.parquet

`latency_us` is the median of warm repeats, `ramped_us` that of calls in a row when clocks have
risen, `cold_us` that after the caches were overwritten, and `timing` says by what clock. With
`--rows FILE` the fp32 calls of that file are timed, such as `sweeper transfer --ask` has written.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from lab.profiler.compare import compare_file
from lab.profiler.shapes import DTYPES, FAMILIES, Call, Design, calls, calls_of
from lab.profiler.torch_backend import Bench, Timed, open_bench
from lab.tables.kernels.fp32_kernels import SIZES, is_in_catalog
from lab.tables.kernels.tensor_cores import FORMATS
from lab.tables.rows import read_table
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.report import print_checks
from simulators.evidence.lookup import DEFAULT_FRAMEWORK

UNLIMITED = 2**31

TEXT = (
    "op",
    "gpu",
    "framework",
    "version",
    "kernel",
    "dtype",
    "split",
    "gemm_dtype",
    "attn_dtype",
    "kv_cache_dtype",
    "timing",
)
WHOLE = tuple(
    dict.fromkeys(
        (
            *SIZES["linear"],
            "rows",
            "cols",
            *SIZES["conv"],
            "batch_size",
            "isl",
            "step",
            "num_heads",
            "num_key_value_heads",
            "head_dim",
            "window_size",
            "repeats",
        )
    )
)
REAL = ("latency_us", "ramped_us", "cold_us", "power_w", "clock_mhz", "temperature_c")

COLUMNS = pa.schema(
    [(name, pa.string()) for name in TEXT]
    + [(name, pa.int64()) for name in WHOLE]
    + [(name, pa.float64()) for name in REAL]
)
"""Of the file: those of the reference tables together; null where an operator has no such size."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or compare."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.compare is not None:
            print_checks(compare_file(asked.compare, asked.gpu, asked.framework))
        else:
            write_measured(asked, calls_asked(asked))
    except UserError as error:
        sys.exit(f"measure: {error}")


def designs_of(ops: Sequence[str], dtypes: Sequence[str]) -> tuple[Design, ...]:
    """Return what to time of the families and precisions asked for.

    >>> [design.ops for design in designs_of(["attention"], ["bf16"])]
    [('prefill',), ('decode',)]

    Raises:
        UnknownNameError: there is no such family or precision.
        UserError: none of the families is timed in one of the precisions.
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


def calls_asked(asked: argparse.Namespace) -> Iterator[Call]:
    """Return the calls to time: of a file, or spread over the families and precisions asked for.

    Raises:
        UserError: the file cannot be read or has no call of fp32; there is no such family.
    """
    if asked.rows is not None:
        return calls_of(read_table(asked.rows, ("op",)), asked.rows)
    designs = designs_of(asked.ops.split(","), asked.dtype.split(","))
    return islice(calls(designs, asked.largest), asked.shapes and asked.shapes * len(designs))


def write_measured(asked: argparse.Namespace, some: Iterator[Call]) -> None:
    """Time calls until the budget is spent, and write them."""
    if not asked.write.resolve().parent.is_dir():
        raise UserError(f"{asked.write}: there is no folder {asked.write.parent}")
    bench = open_bench(asked.device)
    name = asked.gpu or bench.name
    rows, failed = measured_rows(bench, some, name, asked.seconds)
    for reason, count in failed.items():
        print(f"left out: {count} calls that PyTorch could not run: {reason}")
    if not rows:
        raise UserError("no call could be timed; try more --seconds, or a smaller --largest")
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), asked.write)
    counts = Counter(str(row["op"]) for row in rows)
    print(f"{name}: {', '.join(f'{count} {op}' for op, count in counts.items())}")
    whose = "" if is_in_catalog(name) else " --gpu NAME_OF_ITS_DATA_SHEET"
    print(f"Written: {asked.write}")
    print(f"How far off are we? python -m lab.profiler --compare {asked.write}{whose}")


def measured_rows(
    bench: Bench, some: Iterable[Call], name: str, seconds: float
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return one row per call timed within the budget, and why calls failed, with counts."""
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


def _row(call: Call, timed: Timed, gpu: str, version: str) -> dict[str, Any]:
    """Return a measurement under the names of the reference tables."""
    format_ = FORMATS.get(call.dtype)
    kinds: dict[str, tuple[str, ...]] = {"gemm": ("gemm_dtype",)}
    kinds |= dict.fromkeys(("prefill", "decode"), ("attn_dtype", "kv_cache_dtype"))
    return {
        **call.sizes,
        **dict.fromkeys(kinds.get(call.op, ()), format_),
        "op": call.op,
        "dtype": call.dtype,
        "gpu": gpu,
        "framework": "pytorch",
        "version": version,
        "kernel": "pytorch",
        "split": "train",  # no layer's shapes: evenly spread ones
        "timing": timed.timing,
        "repeats": timed.repeats,
        "latency_us": timed.warm_s * 1e6,
        "ramped_us": timed.ramped_s * 1e6,
        "cold_us": timed.cold_s * 1e6,
        "power_w": timed.power_w,
        "clock_mhz": timed.clock_mhz,
        "temperature_c": timed.temperature_c,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.profiler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="time this machine's GPU")
    what.add_argument("--compare", type=Path, metavar="FILE", help="print our error on its rows")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what to time")
    parser.add_argument(
        "--gpu", default="", metavar="NAME", help="its data sheet; else what the driver calls it"
    )
    parser.add_argument(
        "--ops", default=",".join(FAMILIES), help=f"families, of {','.join(FAMILIES)}"
    )
    parser.add_argument("--dtype", default="fp32,bf16", help=f"precisions, of {','.join(DTYPES)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="time to spend (60)")
    parser.add_argument(
        "--shapes",
        type=int,
        metavar="COUNT",
        help="so many of each family, spread as evenly as can be: 10, 50, 200",
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="the fp32 calls of this file")
    parser.add_argument("--largest", type=int, default=UNLIMITED, help="no size above this")
    parser.add_argument(
        "--framework", default=DEFAULT_FRAMEWORK, help="whose kernels --compare predicts"
    )
    return parser


if __name__ == "__main__":
    main()
