"""Read timed fp32 operators of one GPU: Parquet or CSV with the columns of `sweeper measure`.

One row per call: `op`, the sizes and `latency_us`. Operators of one class share their rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.workload.operators import Compute, Convolution, Elementwise, Gemm, Norm

NEEDS = ("op", "latency_us")
CLASS_OF = {
    "linear": "linear",
    "bmm": "bmm",
    "conv": "conv",
    "softmax": "softmax",
    "ln": "layer_norm",
    **dict.fromkeys(("add", "mul", "div"), "binary"),
    "pow": "pow",
    **dict.fromkeys(("addu", "mulu", "divu", "relu", "gelu", "tanh"), "unary"),
    "powu": "powu",
}
"""Operator class of each timed operator."""
OP_OF = {label: op for op, label in reversed(CLASS_OF.items())}
"""The first operator of each class."""

PRODUCT = ("m", "n", "k", "batch")
WINDOW = ("in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
SIZES = {"linear": PRODUCT, "bmm": PRODUCT, "conv": ("batch", *WINDOW)}
"""Sizes of the classes that are products; all others have `rows` and `cols`."""

Sizes = Mapping[str, Floats]
Mask = NDArray[np.bool_] | NDArray[np.int64]


class TimedCalls(Protocol):
    """Timed calls of one operator class on one GPU."""

    @property
    def kernel(self) -> str:
        """The operator class."""
        ...

    @property
    def seconds(self) -> Floats:
        """Measured time of each call."""
        ...

    @property
    def sizes(self) -> Sizes:
        """Sizes of each call, by name."""
        ...

    @property
    def operator(self) -> Any:
        """All calls as one operator whose sizes are columns."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Timings:
    """A user's timed calls of one operator class."""

    kernel: str
    sizes: Sizes
    seconds: Floats

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def operator(self) -> Compute:
        """All calls as one operator whose sizes are columns."""
        return operator_of(self.kernel, self.sizes)

    def where(self, chosen: Mask) -> Timings:
        """Return some of the calls."""
        sizes = {name: column[chosen] for name, column in self.sizes.items()}
        return Timings(self.kernel, sizes, self.seconds[chosen])

    def to_rows(self, seconds: Floats) -> list[dict[str, Any]]:
        """Return the calls with other times, one dictionary per row of a file."""
        labels = {"op": OP_OF[self.kernel], "dtype": "fp32"}
        return [
            {**labels, **{n: int(size[i]) for n, size in self.sizes.items()}, "latency_us": 1e6 * s}
            for i, s in enumerate(seconds.tolist())
        ]


def operator_of(label: str, sizes: Sizes) -> Compute:
    """Return the operator of a class whose sizes are columns."""
    if label in ("linear", "bmm"):
        return Gemm(name=label, dtype="fp32", **sizes)  # type: ignore[arg-type]
    if label == "conv":
        return Convolution(name="conv", **sizes)  # type: ignore[arg-type]
    if label in ("softmax", "layer_norm"):
        return Norm(name=label, kind=label, dtype="fp32", **sizes)  # type: ignore[arg-type]
    elements = sizes["rows"] * sizes["cols"]
    reads = 2.0 if label in ("binary", "pow") else 1.0
    return Elementwise(name=label, elements=elements, reads=reads, dtype="fp32")


def read_timings(file: Path) -> list[Timings]:
    """Return the timed fp32 operators of a file, one entry per operator class.

    Raises:
        UserError: the file cannot be read, holds no fp32 operator, or a time that is not positive.
    """
    table = read_table(file, NEEDS)
    labels = np.array([CLASS_OF.get(op, "") for op in table["op"].to_pylist()], np.str_)
    found = []
    for label in np.unique(labels[labels != ""]).tolist():
        part = table.filter(pa.array(labels == label))
        names = SIZES.get(label, ("rows", "cols"))
        check_columns(part, (n for n in names if n != "batch"), f"{file}: a table of {label}")
        ones = np.ones(part.num_rows)
        there = part.column_names
        sizes = {n: _numbers(part, n, file) if n in there else ones for n in names}
        seconds = _numbers(part, "latency_us", file) * 1e-6
        if not np.all(np.isfinite(seconds) & (seconds > 0.0)):
            raise UserError(f"{file}: `latency_us` of {label} must be above zero in every row")
        found.append(Timings(label, sizes, seconds))
    if not found:
        raise UserError(f"{file}: no fp32 operators; write operator names in the column `op`")
    return found


def read_table(file: Path, needs: Sequence[str] = ()) -> pa.Table:
    """Return a user's table, Parquet or CSV.

    Raises:
        UserError: the file is absent, cannot be read, or lacks a column.
    """
    if not file.is_file():
        raise UserError(f"{file}: file not found")
    read = pyarrow.csv.read_csv if file.suffix == ".csv" else pyarrow.parquet.read_table
    try:
        table: pa.Table = read(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file}: {error}") from error
    check_columns(table, needs, str(file))
    return table.unify_dictionaries()


def check_columns(table: pa.Table, names: Iterable[str], title: str) -> None:
    """Raise `UserError` if a table lacks a column."""
    if missing := [name for name in names if name not in table.column_names]:
        has = ", ".join(table.column_names)
        raise UserError(f"{title} lacks the column {', '.join(missing)}\nIt has: {has}")


def _numbers(table: pa.Table, name: str, file: Path) -> Floats:
    try:
        return np.asarray(table[name].to_numpy().astype(np.float64))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{file}: column {name} contains values that are not numbers ({error})"
        ) from error


def relative_error(predicted: Floats, measured: Floats) -> float:
    """Return the mean absolute relative error; NaN without rows."""
    return float(np.mean(np.abs(predicted / measured - 1.0))) if measured.size else np.nan
