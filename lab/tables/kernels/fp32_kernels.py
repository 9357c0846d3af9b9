"""Measured tables as columns, and the rule that splits them: by whole shapes, never by rows.

The layout is that of the reference folder `gpu_kernels`: one row per timed call, with `op`,
`gpu`, the sizes, and `latency_us`. `split` says how shapes came about: `train` are random, `test`
are those of layers of real models. Repeats of a shape are nearly copies of each other, so rows
are grouped by shape, a hash of the shape decides, and a group falls wholly on one side:

- all random-shaped rows may be fitted, and half of the groups of layer-shaped rows;
- the other half is held out. Where a class has no layer-shaped rows, its random-shaped rows are
  split by the same rule.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import GPUS
from simulators.kernels.families.convolution import Convolution
from simulators.kernels.price import Kernel
from simulators.workload.operators import Elementwise, Gemm, Norm

TABLES = ("gpu_kernels/gemm.parquet", "gpu_kernels/vector.parquet", "gpu_kernels/conv.parquet")

SPLIT = "shape groups by hash: random shapes and half of the layers' shapes fitted, half held out"
"""The split rule in a sentence, as calibration files state it."""

HELD_OUT = 0.5
"""Part of the groups of layer-shaped rows that nothing is fitted to."""

CLASS_OF = {
    "linear": "linear", "bmm": "bmm", "conv": "conv", "softmax": "softmax", "ln": "layer_norm",
    "add": "binary", "mul": "binary", "div": "binary", "pow": "pow",
    "addu": "unary", "mulu": "unary", "divu": "unary", "relu": "unary", "gelu": "unary",
    "tanh": "unary", "powu": "powu",
}  # fmt: skip
"""Operator class of each measured operator: those of a class share their rates."""

SIZES = {
    "linear": ("m", "n", "k", "batch"),
    "bmm": ("m", "n", "k", "batch"),
    "conv": (
        "batch",
        "in_channels",
        "out_channels",
        "kernel_size",
        "input_size",
        "stride",
        "padding",
    ),
}
SHAPE = {"linear": ("n", "k"), "bmm": ("m", "n", "k"), "conv": SIZES["conv"][1:]}
"""What makes up a shape: batch and rows of activations vary with the load, not with the model."""

FAULTY = {("p4", "linear", "train")}
"""Rows in another clock state than the rest of their board; see the cautions of the data set."""

TWINS = {"mi250": "mi210"}
"""One die of an MI250 behaves as an MI210 within 5 %; its rows belong to the same group."""

Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Rows:
    """Measured calls of one operator class on one GPU."""

    gpu: str
    label: str
    ops: NDArray[np.str_]
    sizes: Columns
    seconds: NDArray[np.float64]
    layer_shaped: NDArray[np.bool_]
    group: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.seconds.size

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        return dataclasses.replace(
            self,
            ops=self.ops[chosen],
            sizes={name: column[chosen] for name, column in self.sizes.items()},
            seconds=self.seconds[chosen],
            layer_shaped=self.layer_shaped[chosen],
            group=self.group[chosen],
        )

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Which rows the split rule keeps from every fit."""
        candidates = self.layer_shaped if self.layer_shaped.any() else np.ones(len(self), bool)
        return candidates & (fraction(self.group) >= HELD_OUT)


def operator_of(rows: Rows) -> Kernel:
    """Return the rows as one operator over columns."""
    sizes = rows.sizes
    if rows.label in ("linear", "bmm"):
        return Gemm(name=rows.label, dtype="fp32", **sizes)  # type: ignore[arg-type]
    if rows.label == "conv":
        return Convolution(name="conv", **sizes)  # type: ignore[arg-type]
    if rows.label in ("softmax", "layer_norm"):
        return Norm(name=rows.label, kind=rows.label, dtype="fp32", **sizes)  # type: ignore[arg-type]
    elements = sizes["rows"] * sizes["cols"]
    reads = 2.0 if rows.label in ("binary", "pow") else 1.0
    return Elementwise(name=rows.label, elements=elements, reads=reads, dtype="fp32")


def read_rows(reference: Path) -> tuple[list[Rows], list[str]]:
    """Return all measured rows of GPUs with a data sheet, and what was skipped."""
    found: list[Rows] = []
    skipped: list[str] = []
    for name in TABLES:
        if not (reference / name).is_file():
            skipped.append(f"{name} is not in {reference}")
            continue
        for part, problem in rows_of_table(read_table(reference / name)):
            found += part
            skipped += problem
    return _merged(found), skipped


def read_table(path: Path) -> pa.Table:
    """Return a table of measurements, Parquet or CSV.

    Raises:
        UserError: it cannot be read, or lacks a column every measurement has.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        if path.suffix == ".csv":
            table = pyarrow.csv.read_csv(path)
        else:
            table = pyarrow.parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: {error}") from error
    if missing := [name for name in ("op", "latency_us") if name not in table.column_names]:
        raise UserError(
            f"{path} lacks the column {', '.join(missing)}\nIt has: {', '.join(table.column_names)}"
        )
    return table


def rows_of_table(table: pa.Table, device: str = "") -> Iterator[tuple[list[Rows], list[str]]]:
    """Yield the rows of each GPU and operator class, or why there are none.

    Args:
        table: measurements.
        device: take every row as one of this device, whatever the column `gpu` says.
    """
    names = [device] if device else pc.unique(table["gpu"]).to_pylist()
    for name in names:
        mine = table if device else table.filter(pc.equal(table["gpu"], name))
        try:
            gpu = device or catalog_name(str(name))
        except UnknownNameError:
            yield [], [f"{name} has no data sheet"]
            continue
        labels = np.array([CLASS_OF.get(op, "") for op in mine["op"].to_pylist()])
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


def fraction(group: NDArray[np.uint64], salt: int = 0) -> NDArray[np.float64]:
    """Return a number in [0, 1) per group that looks drawn, and is the same everywhere."""
    mixed = _mix(group ^ np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64))
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def _rows(table: pa.Table, gpu: str, label: str) -> Rows:
    """Return one class of one GPU; columns that are missing have their defaults."""
    names = SIZES.get(label, ("rows", "cols"))
    if missing := [name for name in names if name not in table.column_names and name != "batch"]:
        raise UserError(f"measurements of {label} lack the column {', '.join(missing)}")
    sizes = {
        name: table[name].to_numpy().astype(np.float64)
        if name in table.column_names
        else np.ones(table.num_rows)
        for name in names
    }
    split = (
        np.array(table["split"].to_pylist())
        if "split" in table.column_names
        else np.full(table.num_rows, "test")
    )
    group = np.zeros(table.num_rows, np.uint64)
    for name in SHAPE.get(label, names):
        group = _mix(group ^ sizes[name].astype(np.uint64))
    rows = Rows(
        gpu=gpu,
        label=label,
        ops=np.array(table["op"].to_pylist()),
        sizes=sizes,
        seconds=table["latency_us"].to_numpy().astype(np.float64) * 1e-6,
        layer_shaped=split == "test",
        group=group,
    )
    faulty = np.array([(gpu, label, str(s)) in FAULTY for s in split], bool)
    return rows.where(~faulty)


def _merged(parts: list[Rows]) -> list[Rows]:
    """Join rows of twins, so that one device and class stand once."""
    merged: dict[tuple[str, str], Rows] = {}
    for part in parts:
        key = (part.gpu, part.label)
        merged[key] = _joined(merged[key], part) if key in merged else part
    return [rows for rows in merged.values() if len(rows)]


def _joined(one: Rows, other: Rows) -> Rows:
    return dataclasses.replace(
        one,
        ops=np.concatenate([one.ops, other.ops]),
        sizes={k: np.concatenate([one.sizes[k], other.sizes[k]]) for k in one.sizes},
        seconds=np.concatenate([one.seconds, other.seconds]),
        layer_shaped=np.concatenate([one.layer_shaped, other.layer_shaped]),
        group=np.concatenate([one.group, other.group]),
    )


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64 of each number (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
