"""Read times of operators from profiles: PyTorch's profiler (Kineto) and Nsight Systems.

- Kineto's JSON (`torch.profiler.profile(record_shapes=True)`, `export_chrome_trace`): an operator's
  kernels have its `External id`; its arguments state shapes and precisions.
- The SQLite export of Nsight Systems (`nsys export --type sqlite`): kernels belong to the innermost
  NVTX range around their launch, which `torch.autograd.profiler.emit_nvtx(record_shapes=True)`
  writes with the shapes. Precisions are those in the names of kernels.

A time is the sum of an operator's kernels, the median over calls of equal shapes; launches are not
in it. Products, softmax, layer norm and pointwise operators are read, other operators are not.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simulators.core.errors import UserError
from simulators.core.folder import read_toml

NAMES = read_toml(Path(__file__).with_suffix(".toml"))
SUFFIXES = (".json", ".json.gz", ".sqlite")

_RANGE = re.compile(r"(aten::\w+)\b.*?sizes = (\[.*?\])(?:, input_op_ids.*)?$")
Shapes = Sequence[Any]


class TimedOperator(NamedTuple):
    """One call of an operator."""

    name: str
    shapes: Shapes  # of its inputs
    dtype: str
    seconds: float


def is_profile(path: Path) -> bool:
    """Return whether a file may be a profile, by its name."""
    return path.name.endswith(SUFFIXES)


def timed_calls(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a profile in the columns of `sweeper measure`, one per kind of call.

    fp32 products are `linear` and `bmm`, products in other precisions `gemm`.

    Raises:
        UserError: the file is no profile, or has no operator with shapes and kernels.
    """
    calls = _nsight(path) if path.suffix == ".sqlite" else _kineto(path)
    found: dict[tuple[tuple[str, Any], ...], list[float]] = {}
    for call in calls:
        if 0.0 < call.seconds < math.inf and (row := _row(call)):
            found.setdefault(tuple(row.items()), []).append(call.seconds)
    if not found:
        raise UserError(
            f"{path} has no operators with shapes and kernels; record it with record_shapes=True"
        )
    return [{**dict(row), "latency_us": 1e6 * median(times)} for row, times in found.items()]


def _row(call: TimedOperator) -> dict[str, Any] | None:
    """Return the operator and the sizes of a call; None where they are not read."""
    shapes = [shape if _is_shape(shape) else [] for shape in call.shapes]
    sizes: dict[str, Any]
    if factors := NAMES["products"].get(call.name):
        if len(shapes) <= max(factors):
            return None
        left, right = (shapes[i] for i in factors)
        if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
            return None
        *batch, m, k = left
        op = "gemm" if call.dtype != "fp32" else "bmm" if batch else "linear"
        sizes = {"batch": math.prod(batch), "m": m, "n": right[-1], "k": k}
    elif (op := NAMES["vectors"].get(call.name)) and shapes and shapes[0]:
        *rows, columns = shapes[0]
        sizes = {"rows": math.prod(rows), "cols": columns}
    else:
        return None
    return {"op": op, "dtype": call.dtype, **sizes} if all(sizes.values()) else None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)


def _kineto(path: Path) -> Iterator[TimedOperator]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as text:
            whole = json.load(text)
        events = whole["traceEvents"] if isinstance(whole, dict) else whole
    except (OSError, EOFError, zlib.error, ValueError, KeyError, RecursionError) as error:
        raise UserError(f"{path} is not a trace of PyTorch's profiler: {error}") from error
    if not isinstance(events, list):
        raise UserError(f"{path} is not a trace of PyTorch's profiler: traceEvents is not a list")
    kernel_s: dict[Any, float] = {}
    operators: dict[Any, Mapping[str, Any]] = {}
    for event in events:
        about = event.get("args") if isinstance(event, dict) else None
        if not isinstance(about, dict) or not isinstance(
            link := about.get("External id"), int | str
        ):
            continue
        if event.get("cat") == "kernel":
            if not isinstance(took_us := event.get("dur", 0.0), int | float):
                raise UserError(f"{path}: the kernel {event.get('name')} takes {took_us!r}")
            kernel_s[link] = kernel_s.get(link, 0.0) + 1e-6 * took_us
        elif event.get("cat") == "cpu_op" and "Input Dims" in about:
            operators[link] = {"name": event.get("name"), **about}
    for link, about in operators.items():
        kinds, shapes = about.get("Input type", about.get("Input Type")), about["Input Dims"]
        if not isinstance(kinds, list) or not isinstance(shapes, list):
            continue
        dtype = next((NAMES["types"][k] for k in map(str, kinds) if k in NAMES["types"]), "")
        if dtype and link in kernel_s:
            yield TimedOperator(str(about["name"]), shapes, dtype, kernel_s[link])


_LAUNCHES = """
select names.value, kernels.end - kernels.start, launches.start, launches.end, launches.globalTid
from CUPTI_ACTIVITY_KIND_KERNEL as kernels
join CUPTI_ACTIVITY_KIND_RUNTIME as launches on kernels.correlationId = launches.correlationId
join StringIds as names on names.id = kernels.demangledName
order by launches.start
"""
_RANGES = """
select ranges.start, ranges.end, ranges.globalTid, coalesce(ranges.text, names.value)
from NVTX_EVENTS as ranges left join StringIds as names on names.id = ranges.textId
where ranges.end is not null order by ranges.start
"""


def _nsight(path: Path) -> Iterator[TimedOperator]:
    if not path.is_file():
        raise UserError(f"{path}: file not found")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            launches, ranges = (base.execute(query).fetchall() for query in (_LAUNCHES, _RANGES))
    except sqlite3.Error as error:
        raise UserError(f"{path} is not an SQLite export of Nsight Systems: {error}") from error
    by_thread: dict[Any, list[tuple[int, int, str]]] = {}  # the next one last
    for start, end, thread, text in reversed(ranges):
        by_thread.setdefault(thread, []).append((start, end, str(text)))
    calls: dict[tuple[Any, int, str], tuple[float, str]] = {}
    open_ranges: dict[Any, list[tuple[int, int, str]]] = {}
    for kernel, duration_ns, start, end, thread in launches:
        coming, started = by_thread.get(thread, []), open_ranges.get(thread, [])
        while coming and coming[-1][0] <= start:
            started.append(coming.pop())
        open_ranges[thread] = started = [r for r in started if r[1] >= start]
        if not (inside := [r for r in started if end <= r[1]]):
            continue
        first, _, text = max(inside)  # the innermost begins last
        seconds, dtype = calls.get((thread, first, text), (0.0, ""))
        calls[thread, first, text] = (seconds + 1e-9 * duration_ns, dtype or _dtype_of(str(kernel)))
    for (_, _, text), (seconds, dtype) in calls.items():
        if dtype and (match := _RANGE.match(text)):
            try:
                shapes = ast.literal_eval(match[2])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            yield TimedOperator(match[1], shapes, dtype, seconds)


def _dtype_of(kernel: str) -> str:
    """Return the precision in a kernel's name; empty if it states none.

    >>> _dtype_of("ampere_sgemm_128x64_tn"), _dtype_of("sm90_xmma_gemm_bf16bf16_bf16f32")
    ('fp32', 'bf16')
    """
    name = kernel.lower()
    return next((d for d, parts in NAMES["kernels"].items() if any(p in name for p in parts)), "")
