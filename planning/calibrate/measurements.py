"""A user's measured rows: read them, and write the calibration fitted to them with its gain.

Timed fp32 operators of one GPU are Parquet or CSV with the columns of `sweeper measure`: one row
per call with `op`, the sizes and `latency_us`. Operators of one class share their rates.
A calibration is TOML with the provenance of the fitted rows, closed by a hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from simulators.core.calibration import SEAL
from simulators.core.errors import UserError
from simulators.core.folder import read_toml, reader
from simulators.core.jit import Floats
from simulators.workload.operators import Compute, Convolution, Elementwise, Gemm, Norm

NEEDS = ("op", "latency_us")
PROFILES = "profiler_traces"
CLASS_OF: dict[str, str] = read_toml(Path(__file__).with_suffix(".toml"))["classes"]
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

    @property
    def seconds(self) -> Floats:
        """Measured time of each call."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of each call, by name."""

    @property
    def operator(self) -> Any:
        """All calls as one operator whose sizes are columns."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Timings:
    """A user's timed calls of one operator class; all arrays have one entry per call."""

    kernel: str
    sizes: Sizes
    seconds: Floats

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def operator(self) -> Compute:
        """All calls as one operator whose sizes are columns."""
        return operator_of(self.kernel, self.sizes)

    def where(self, mask: Mask) -> Timings:
        """Return the calls selected by a mask or by positions."""
        sizes = {name: column[mask] for name, column in self.sizes.items()}
        return Timings(self.kernel, sizes, self.seconds[mask])

    def to_rows(self, seconds: Floats) -> list[dict[str, Any]]:
        """Return the calls with the given times, one dictionary per row of a file."""
        labels = {"op": OP_OF[self.kernel], "dtype": "fp32"}
        return [
            {**labels, **{n: int(size[i]) for n, size in self.sizes.items()}, "latency_us": 1e6 * s}
            for i, s in enumerate(seconds.tolist())
        ]


def operator_of(label: str, sizes: Sizes) -> Compute:
    """Return an operator of the class `label` whose sizes are columns."""
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
        UserError: the file cannot be read, contains no fp32 operator, or a time is not positive.
    """
    table = read_table(file, NEEDS)
    labels = np.array([CLASS_OF.get(op, "") for op in table["op"].to_pylist()], np.str_)
    found = []
    for label in np.unique(labels[labels != ""]).tolist():
        part = table.filter(pa.array(labels == label))
        names = SIZES.get(label, ("rows", "cols"))
        check_columns(part, (n for n in names if n != "batch"), f"{file}: a table of {label}")
        ones = np.ones(part.num_rows)
        known = part.column_names
        sizes = {n: column_numbers(part, n, str(file)) if n in known else ones for n in names}
        seconds = latencies(part, "latency_us", str(file)) * 1e-6
        found.append(Timings(label, sizes, seconds))
    if not found:
        raise UserError(f"{file}: no fp32 operators; write operator names in the column `op`")
    return found


def read_table(
    file: Path, needs: Sequence[str] = (), filters: Sequence[tuple[str, str, Any]] = ()
) -> pa.Table:
    """Return a table from a Parquet or CSV file, or the timed calls of a profile.

    `filters`: column, comparison and value that rows of a Parquet file must meet.

    Raises:
        UserError: the file is absent, cannot be read, or lacks a column.
    """
    if not file.is_file():
        raise UserError(f"{file}: file not found")
    try:
        if file.suffix == ".csv":
            table = pyarrow.csv.read_csv(file)
        elif reader(PROFILES, "is_profile")(file):
            rows = reader(PROFILES, "timed_calls")(file)
            names = dict.fromkeys(name for row in rows for name in row)
            table = pa.table({name: [row.get(name) for row in rows] for name in names})
        else:
            columns = pyarrow.parquet.read_schema(file).empty_table()
            check_columns(columns, (name for name, _, _ in filters), str(file))
            table = pyarrow.parquet.read_table(file, filters=list(filters) or None)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file}: {error}") from error
    check_columns(table, needs, str(file))
    return table.unify_dictionaries()


def check_columns(table: pa.Table, names: Iterable[str], title: str) -> None:
    """Raise UserError if the table called `title` lacks a column."""
    if missing := [name for name in names if name not in table.column_names]:
        has = ", ".join(table.column_names)
        raise UserError(f"{title} lacks the column {', '.join(missing)}\nIt has: {has}")


def column_numbers(table: pa.Table, name: str, title: str) -> Floats:
    """Return a column as floats, NaN for empty cells.

    Raises:
        UserError: the column of the table called `title` contains words.
    """
    try:
        return np.asarray(table[name].to_numpy().astype(np.float64))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{title}: column {name} contains values that are not numbers ({error})"
        ) from error


def latencies(table: pa.Table, name: str, title: str) -> Floats:
    """Return a column of measured times. Raises UserError unless all are numbers above zero."""
    found = column_numbers(table, name, title)
    if not np.all(np.isfinite(found) & (found > 0.0)):
        raise UserError(f"{title}: `{name}` must be above zero in every row")
    return found


def relative_error(predicted: Floats, measured: Floats) -> float:
    """Return the mean absolute relative error; NaN without rows."""
    return float(np.mean(np.abs(predicted / measured - 1.0))) if measured.size else np.nan


@dataclass(frozen=True)
class Gain:
    """Relative errors on held-out rows, for one kind of measurement."""

    name: str
    rows: int
    before: float  # error without the rows
    halved: float  # error with half of the rows
    after: float  # error with all rows

    @property
    def is_better(self) -> bool:
        """Whether the rows lower the error."""
        return self.after < self.before

    @property
    def more_rows(self) -> int | None:
        """Further rows that would halve the error; None if no number of rows would.

        The square of an error is assumed to be a constant, the error of the model's form, plus a
        term that falls with the number of rows. Errors with all and with half of the rows determine
        both.

        >>> Gain("linear", 10, before=0.5, halved=0.2, after=0.1).more_rows
        110
        >>> Gain("linear", 10, before=0.5, halved=0.2, after=0.2).more_rows
        """
        falling = (self.halved**2 - self.after**2) * self.rows
        constant = self.after**2 - falling / self.rows
        remaining = self.after**2 / 4.0 - max(constant, 0.0)
        if falling <= 0.0 or remaining <= 0.0:
            return None
        return max(1, math.ceil(round(falling / remaining - self.rows, 3)))


def write_calibration(
    file: Path, content: Mapping[str, Any], measured: Path, rows: int, split: str, error: float
) -> None:
    """Write a calibration with its provenance.

    Args:
        file: TOML file.
        content: numbers, by table.
        measured: the user's file.
        rows: number of fitted rows.
        split: how rows were held out, in words.
        error: mean absolute relative error of held-out rows.

    Raises:
        UserError: the file cannot be written.
    """
    provenance = {
        "measured": measured.name,
        "sha256": hashlib.sha256(measured.read_bytes()).hexdigest(),
        "rows": rows,
        "split": split,
        "held_out_mape": error,
        **content.get("provenance", {}),
    }
    lines = toml_lines({**content, "provenance": provenance})
    write_sealed(file, "\n".join(["# Written by `sweeper calibrate`", *lines]))


def write_sealed(file: Path, body: str) -> None:
    """Write a calibration and the checksum of its text; the file is whole or absent.

    Raises:
        UserError: the file cannot be written.
    """
    body = body.rstrip("\n") + "\n"
    seal = hashlib.sha256(body.encode()).hexdigest()
    draft = file.with_suffix(".partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(f"{body}{SEAL}{seal}\n", encoding="utf-8")
        draft.replace(file)
    except OSError as problem:
        raise UserError(f"{file}: {problem.strerror}") from problem


def toml_lines(content: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield a mapping as TOML: plain values first, then tables and arrays of tables."""
    tables = {k: v for k, v in content.items() if isinstance(v, Mapping) or _is_rows(v)}
    for name, value in content.items():
        if name not in tables:
            yield f"{_key(name)} = {_value(value)}"
    for name, value in tables.items():
        inner = f"{path}.{_key(name)}".lstrip(".")
        for one in [value] if isinstance(value, Mapping) else value:
            yield ""
            yield f"[{inner}]" if isinstance(value, Mapping) else f"[[{inner}]]"
            yield from toml_lines(one, inner)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) and value % 1 else json.dumps(value)
