"""Calls of fp32 operators, timed from the host: the reference tables `gpu_kernels/*.parquet`.

`split` says how shapes were chosen: `train` are spread over a range, `test` are those of layers of
real models. All shapes of the first kind may be fitted, and half of the second; where a class has
no layer shapes, half of its other shapes.
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
    by_labels,
    joined,
    mixed_group_of,
    numbers,
    read_table,
    tidy,
    words,
)
from planning.calibrate.timings import CLASS_OF, NEEDS, SIZES, WINDOW, check_columns, operator_of
from simulators.core.errors import UnknownNameError
from simulators.core.folder import GPUS

TABLES = ("gpu_kernels/gemm.parquet", "gpu_kernels/vector.parquet", "gpu_kernels/conv.parquet")

SPLIT = "shape groups by hash: random shapes and half of the layers' shapes fitted, half held out"
"""The split in a sentence, as calibration files state it."""

SHAPE = {"linear": ("n", "k"), "bmm": ("m", "n", "k"), "conv": WINDOW}
"""Sizes that make up a shape: batch and rows of activations vary with the load."""

FAULTY = {("p4", "linear", "train")}
"""Rows in another clock state than the rest of their GPU; see the cautions of the data set."""

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
    """Yield the rows of each GPU by operator class, and the problems of those left out.

    Args:
        table: measurements.
        device: the GPU of all rows, whatever the column `gpu` says.
    """
    for (name,), mine in [((device,), table)] if device else by_labels(table, "gpu"):
        if not device and not is_in_catalog(str(name)):
            yield [], [f"{name} has no data sheet"]
            continue
        gpu = device or catalog_name(str(name))
        labels = np.array([CLASS_OF.get(op, "") for op in mine["op"].to_pylist()], np.str_)
        rows = [
            _rows(mine.filter(pa.array(labels == label)), gpu, str(label))
            for label in np.unique(labels[labels != ""])
        ]
        yield rows, [f"{name}: unknown operators"] if np.any(labels == "") else []


def catalog_name(measured: str) -> str:
    """Return the catalog's name for a GPU as PyTorch writes it.

    >>> catalog_name("P100-PCIE-16GB")
    'p100_pcie'

    Raises:
        UnknownNameError: the catalog has no such GPU.
    """
    name = measured.lower().replace("-", "_").replace(" ", "_")
    known = next((n for n in (name, re.sub(r"_\d+gb$", "", name)) if GPUS.has(n)), "")
    if not known:
        raise UnknownNameError("gpu", measured, GPUS.names())
    found = GPUS.find(known).stem
    return TWINS.get(found, found)


def is_in_catalog(measured: str) -> bool:
    """Return whether the catalog has a GPU, as PyTorch writes it."""
    try:
        return bool(catalog_name(measured))
    except UnknownNameError:
        return False


def _rows(table: pa.Table, gpu: str, label: str) -> Rows:
    """Return one class of one GPU; a missing batch is 1, and rows without a split are layers'."""
    names = SIZES.get(label, ("rows", "cols"))
    check_columns(table, (name for name in names if name != "batch"), f"a table of {label}")
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
        operator_of=functools.partial(operator_of, label),
    )
    return rows.where(np.array([(gpu, label, str(s)) not in FAULTY for s in split], bool))
