"""Calls of fp32 operators, timed from the host: the reference tables `gpu_kernels/*.parquet`.

One row per timed call, with `op`, `gpu`, the sizes, and `latency_us`. `split` says how shapes came
about: `train` are spread over a range, `test` are those of layers of real models. All rows of the
first kind may be fitted, and half of the shapes of the second; where a class has no layer-shaped
rows, half of its other shapes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from lab.tables.rows import (
    Rows,
    Sizes,
    by_labels,
    joined,
    mixed_group_of,
    numbers,
    read_table,
    require,
    tidy,
    words,
)
from simulators.core.errors import UnknownNameError
from simulators.core.folder import GPUS
from simulators.workload.operators import Compute, Convolution, Elementwise, Gemm, Norm

TABLES = ("gpu_kernels/gemm.parquet", "gpu_kernels/vector.parquet", "gpu_kernels/conv.parquet")
NEEDS = ("op", "latency_us")

SPLIT = "shape groups by hash: random shapes and half of the layers' shapes fitted, half held out"
"""The split rule in a sentence, as calibration files state it."""

CLASS_OF = {
    "linear": "linear",
    "bmm": "bmm",
    "conv": "conv",
    "softmax": "softmax",
    "ln": "layer_norm",
    "add": "binary",
    "mul": "binary",
    "div": "binary",
    "pow": "pow",
    "addu": "unary",
    "mulu": "unary",
    "divu": "unary",
    "relu": "unary",
    "gelu": "unary",
    "tanh": "unary",
    "powu": "powu",
}
"""Operator class of each measured operator: those of a class share their rates."""

PRODUCT = ("m", "n", "k", "batch")
WINDOW = ("in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
SIZES = {"linear": PRODUCT, "bmm": PRODUCT, "conv": ("batch", *WINDOW)}
SHAPE = {"linear": ("n", "k"), "bmm": ("m", "n", "k"), "conv": WINDOW}
"""What makes up a shape: batch and rows of activations vary with the load, not with the model."""

FAULTY = {("p4", "linear", "train")}
"""Rows in another clock state than the rest of their board; see the cautions of the data set."""

TWINS = {"mi250": "mi210"}
"""One die of an MI250 behaves as an MI210 within 5 %; its rows belong to the same group."""


def read_rows(reference: Path) -> tuple[list[Rows], list[str]]:
    """Return all measured rows of GPUs with a data sheet, and what was skipped."""
    found: list[Rows] = []
    skipped: list[str] = []
    for name in TABLES:
        if not (reference / name).is_file():
            skipped.append(f"{name} is not in {reference}")
            continue
        for part, problem in rows_of_table(read_table(reference / name, NEEDS)):
            found += part
            skipped += problem
    merged = joined(found, lambda part: (part.gpu, part.kernel))
    return [rows for rows in merged if len(rows)], skipped


def rows_of_table(table: pa.Table, device: str = "") -> Iterator[tuple[list[Rows], list[str]]]:
    """Yield the rows of each GPU and operator class, or why there are none.

    Args:
        table: measurements.
        device: take every row as one of this device, whatever the column `gpu` says.
    """
    boards = [((device,), table)] if device else by_labels(table, "gpu")
    for (name,), mine in boards:
        try:
            gpu = device or catalog_name(str(name))
        except UnknownNameError:
            yield [], [f"{name} has no data sheet"]
            continue
        labels = np.array([CLASS_OF.get(op, "") for op in mine["op"].to_pylist()], np.str_)
        rows = [
            _rows(mine.filter(pa.array(labels == label)), gpu, str(label))
            for label in np.unique(labels[labels != ""])
        ]
        yield rows, [f"{name}: unknown operators"] if np.any(labels == "") else []


def catalog_name(measured: str) -> str:
    """Return the data sheet's name for a GPU as a table of measurements calls it.

    >>> catalog_name("P100-PCIE-16GB")
    'p100_pcie'

    Raises:
        UnknownNameError: no data sheet answers to it.
    """
    name = measured.lower().replace("-", "_").replace(" ", "_")
    for candidate in (name, re.sub(r"_\d+gb$", "", name)):
        try:
            found = GPUS.find(candidate).stem
        except UnknownNameError:
            continue
        return TWINS.get(found, found)
    raise UnknownNameError("gpu", measured, GPUS.names())


def is_in_catalog(measured: str) -> bool:
    """Say whether a GPU as a table of measurements calls it has a data sheet."""
    try:
        catalog_name(measured)
    except UnknownNameError:
        return False
    return True


def _operator(label: str, sizes: Sizes) -> Compute:
    """Return the operator of a class over columns."""
    if label in ("linear", "bmm"):
        return Gemm(name=label, dtype="fp32", **sizes)  # type: ignore[arg-type]
    if label == "conv":
        return Convolution(name="conv", **sizes)  # type: ignore[arg-type]
    if label in ("softmax", "layer_norm"):
        return Norm(name=label, kind=label, dtype="fp32", **sizes)  # type: ignore[arg-type]
    elements = sizes["rows"] * sizes["cols"]
    reads = 2.0 if label in ("binary", "pow") else 1.0
    return Elementwise(name=label, elements=elements, reads=reads, dtype="fp32")


def _rows(table: pa.Table, gpu: str, label: str) -> Rows:
    """Return one class of one GPU; a missing batch is one, and rows without a split are layers'."""
    names = SIZES.get(label, ("rows", "cols"))
    require(table, (name for name in names if name != "batch"), f"a table of {label}")
    there = numbers(table, (name for name in names if name in table.column_names))
    sizes = {name: there.get(name, np.ones(table.num_rows)) for name in names}
    has_split = "split" in table.column_names
    split = words(table, "split") if has_split else np.full(table.num_rows, "test")
    rows = tidy(
        sizes,
        numbers(table, ["latency_us"])["latency_us"] * 1e-6,
        mixed_group_of(sizes[name] for name in SHAPE.get(label, names)),
        gpu=gpu,
        kernel=label,
        dtype="fp32",
        from_layers=split == "test",
        operator_of=functools.partial(_operator, label),
    )
    return rows.where(np.array([(gpu, label, str(s)) not in FAULTY for s in split], bool))
