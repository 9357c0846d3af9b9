"""Measured kernels as tidy rows: columns of sizes, seconds, and a mask of held-out rows.

`Rows` hold one kernel of one framework on one GPU. Rows of equal shape are nearly copies of each
other, so a hash of the shape decides on which side of the split all of them fall. No fit may see a
held-out row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
from numpy.typing import NDArray

from planning.calibrate import measurements
from planning.calibrate.measurements import check_columns, column_numbers, relative_error
from simulators.core.errors import UserError
from simulators.core.folder import read_toml

MEASURED_TABLE = "a measured table"  # in messages

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Groups = NDArray[np.uint64]
Sizes = Mapping[str, Floats]
Range = tuple[float, float]

mape = relative_error

WITHDRAWN = read_toml(Path(__file__).with_name("withdrawn.toml"))["withdrawn"]
"""Rows that their authors withdrew: tables, condition, reason and source."""

STORED_RUNS = read_toml(Path(__file__).with_name("stored_runs.toml"))
"""How stored runs of engines and simulators are simulated."""

UPPER_HALF: Range = (0.5, 1.0)
LOWER_QUARTER: Range = (0.0, 0.25)
"""Hashes of shapes, as fractions of their range, that are held out of every fit."""

BANDED = 0.75
"""Of the upper half, rows below this give the interval of a fit; those above it judge it."""


def _no_operator(sizes: Sizes) -> Any:
    raise AssertionError(f"rows with the sizes {', '.join(sizes)} time no single operator")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Measurements under one set of labels; every column has one entry per row."""

    gpu: str
    framework: str = ""
    kernel: str = ""
    dtype: str = ""  # of the arithmetic; of attention followed by that of the cache: bf16_fp8
    version: str = ""  # of the framework
    variant: str = ""  # another distinction, such as the spread of tokens over experts
    sizes: Sizes
    seconds: Floats
    watts: Floats  # NaN where not metered
    group: Groups  # a number of each row's shape
    bucket: Floats  # hash of the group in [0, 1)
    held_out: Bools  # rows that no fit may see
    from_layers: Bools  # shapes of layers of real models; other shapes are spread over a range
    operator_of: Callable[[Sizes], Any] = _no_operator  # the operator that was timed

    def __len__(self) -> int:
        return self.seconds.size

    @property
    def operator(self) -> Any:
        """The rows as one operator whose sizes are columns."""
        return self.operator_of(self.sizes)

    @property
    def name(self) -> str:
        """The name of the kernel in a calibration: framework, kernel and formats."""
        return f"{self.framework}.{self.kernel}.{self.dtype}"

    def where(self, chosen: Bools | NDArray[np.int64]) -> Rows:
        """Return selected rows."""
        sizes = {name: column[chosen] for name, column in self.sizes.items()}
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in ARRAYS}
        return dataclasses.replace(self, sizes=sizes, **arrays)

    @property
    def layers(self) -> Rows:
        """The rows with shapes of real models if there are any, else all rows."""
        return self.where(self.from_layers) if self.from_layers.any() else self

    def thinned(self, count: int) -> Rows:
        """Return at most `count` rows, evenly spaced."""
        return self.where(evenly(len(self), count))

    def drawn(self, count: int) -> Rows:
        """Return at most `count` rows, drawn at random with a fixed seed."""
        if len(self) <= count:
            return self
        draw = np.random.default_rng(np.random.SeedSequence(0))
        return self.where(np.sort(draw.choice(len(self), count, replace=False)))


def evenly(size: int, count: int) -> NDArray[np.int64]:
    """Return at most `count` positions among `size` rows, evenly spaced.

    >>> evenly(9, 3).tolist(), evenly(2, 3).tolist()
    ([0, 4, 8], [0, 1])
    """
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))


ARRAYS = ("seconds", "watts", "group", "bucket", "held_out", "from_layers")
"""Columns of `Rows` besides its sizes."""


def tidy(
    sizes: Sizes,
    seconds: Floats,
    group: Groups,
    held_out: Range = UPPER_HALF,
    *,
    bucket: Floats | None = None,
    watts: Floats | None = None,
    from_layers: Bools | None = None,
    **labels: Any,
) -> Rows:
    """Return rows with the hold-out rule applied.

    Args:
        sizes: columns of sizes.
        seconds: measured seconds.
        group: a number of each row's shape, as by `group_of`.
        held_out: range of buckets that are held out of every fit.
        bucket: bucket of each row, if not a hash of the group.
        watts: metered watts, if any.
        from_layers: mask of shapes of real models; if there are any, no others are held out.
        labels: other fields of `Rows`.

    >>> rows = tidy({"m": np.arange(4.0)}, np.ones(4), np.arange(4, dtype=np.uint64), gpu="t4")
    >>> rows.held_out.tolist(), rows.bucket.round(2).tolist()
    ([True, True, True, False], [0.88, 0.57, 0.59, 0.11])
    """
    bucket = fraction(group) if bucket is None else bucket
    layers = np.ones(seconds.size, bool) if from_layers is None else from_layers
    aside = (held_out[0] <= bucket) & (bucket < held_out[1])
    return Rows(
        sizes=sizes,
        seconds=seconds,
        watts=np.full(seconds.size, np.nan) if watts is None else watts,
        group=group,
        bucket=bucket,
        held_out=aside & layers if layers.any() else aside,
        from_layers=layers,
        **labels,
    )


Key = TypeVar("Key")


def joined(parts: Iterable[Rows], key: Callable[[Rows], Key]) -> list[Rows]:
    """Return rows of equal keys concatenated, in the order of first appearance."""
    found: dict[Key, list[Rows]] = {}
    for part in parts:
        found.setdefault(key(part), []).append(part)
    return [_concatenated(some) for some in found.values()]


def _concatenated(parts: Sequence[Rows]) -> Rows:
    names = parts[0].sizes
    sizes = {name: np.concatenate([part.sizes[name] for part in parts]) for name in names}
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS
    }
    return dataclasses.replace(parts[0], sizes=sizes, **arrays)


def group_of(columns: Iterable[Floats], base: int = 1_000_003) -> Groups:
    """Return a number of each row's shape: the sizes as digits to a base."""
    group: Groups = np.zeros(1, np.uint64)
    for column in columns:
        group = group * np.uint64(base) + column.astype(np.uint64)
    return group


def mixed_group_of(columns: Iterable[Floats]) -> Groups:
    """Return a number of each row's shape whose bits all depend on all sizes."""
    group: Groups = np.zeros(1, np.uint64)
    for column in columns:
        group = _mix(group ^ column.astype(np.uint64))
    return group


def fraction(group: Groups, salt: int = 0) -> Floats:
    """Return a hash of each group as a number in [0, 1)."""
    mixed = _mix(group ^ np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64))
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def _mix(x: Groups) -> Groups:
    """Return splitmix64 of each number (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def read_table(file: Path, needs: Sequence[str] = (), /, **wanted: Any) -> pa.Table:
    """Return a measured table, Parquet or CSV, without the rows that their authors withdrew.

    Args:
        file: the table.
        needs: columns that the table must have.
        wanted: by column of a Parquet file, the value or list of values of the rows to return.

    Raises:
        UserError: the file is missing, cannot be read, or lacks a column.
    """
    filters = [
        (name, "in" if isinstance(value, list | tuple) else "==", value)
        for name, value in wanted.items()
    ]
    table = measurements.read_table(file, needs, filters)
    for one in WITHDRAWN:
        if any(map(file.match, one["tables"])):
            table = chosen_rows(table, f"NOT COALESCE({one['where']}, FALSE)")
    return table


def read_frame(file: Path, needs: Sequence[str] = (), /, **wanted: Any) -> pl.DataFrame:
    """Return a measured table as a polars frame, as `read_table` reads it."""
    return pl.DataFrame(pl.from_arrow(read_table(file, needs, **wanted)))


class Record(dict[str, Any]):
    """One row of a table: its columns as items and as attributes."""

    def __missing__(self, name: str) -> Any:
        raise UserError(f"a measured table lacks the column {name}\nIt has: {', '.join(self)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]


def read_records(file: Path, needs: Sequence[str] = (), /, **wanted: Any) -> list[Record]:
    """Return the rows of a measured table, as `read_table` reads them.

    Raises:
        UserError: the file is missing, unreadable, or lacks a column.
    """
    return [Record(row) for row in read_table(file, needs, **wanted).to_pylist()]


def numbers(table: pa.Table, names: Iterable[str]) -> dict[str, Floats]:
    """Return columns as floats, NaN for empty cells.

    Raises:
        UserError: a column is missing or holds words.
    """
    names = tuple(names)
    check_columns(table, names, MEASURED_TABLE)
    return {name: column_numbers(table, name, MEASURED_TABLE) for name in names}


def chosen_rows(table: pa.Table, where: str) -> pa.Table:
    """Return the rows that a condition in SQL holds for.

    >>> chosen_rows(pa.table({"us": [1.0, 3.0]}), "us > 2")["us"].to_pylist()
    [3.0]
    """
    return pl.DataFrame(pl.from_arrow(table)).filter(pl.sql_expr(where)).to_arrow()


def computed(table: pa.Table, columns: Mapping[str, str]) -> dict[str, Floats]:
    """Return columns of floats by name, each a SQL expression of a table's columns.

    >>> computed(pa.table({"us": [1, 3]}), {"seconds": "us / 1000000"})
    {'seconds': array([1.e-06, 3.e-06])}
    """
    frame = pl.DataFrame(pl.from_arrow(table)).with_columns(cs.numeric().cast(pl.Float64))
    found = {name: pl.sql_expr(text).cast(pl.Float64) for name, text in columns.items()}
    return {one.name: one.fill_null(np.nan).to_numpy() for one in frame.select(**found)}


def evaluated(expressions: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of SQL expressions of one row, by name.

    >>> evaluated({"tokens": "m * 2"}, {"m": 3})
    {'tokens': 6}
    """
    found = {name: pl.sql_expr(text) for name, text in expressions.items()}
    return pl.DataFrame([values]).select(**found).row(0, named=True)


def metered(table: pa.Table) -> dict[str, Floats]:
    """Return the column of watts as a field of `Rows`, if the table has one."""
    if "power_w" not in table.column_names:
        return {}
    return {"watts": column_numbers(table, "power_w", MEASURED_TABLE)}


def first(table: pa.Table, name: str) -> str:
    """Return the word in the first row of a column; empty without rows or column."""
    return str(table[name][0].as_py()) if table.num_rows and name in table.column_names else ""


def words(table: pa.Table, name: str) -> NDArray[np.str_]:
    """Return a column of words. Raises UserError if the table lacks the column."""
    check_columns(table, [name], MEASURED_TABLE)
    return np.array(table[name].to_pylist(), np.str_)


def by_labels(table: pa.Table, *names: str) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield the rows of each combination of labels, in the order of the labels.

    >>> table = pa.table({"gpu": ["b", "a", "b"], "us": [1, 2, 3]})
    >>> [(gpu, rows["us"].to_pylist()) for (gpu,), rows in by_labels(table, "gpu")]
    [('a', [2]), ('b', [1, 3])]
    """
    check_columns(table, names, MEASURED_TABLE)
    parts = pl.DataFrame(pl.from_arrow(table)).partition_by(names, as_dict=True)
    for labels, rows in sorted(parts.items(), key=lambda part: part[0]):
        yield labels, rows.to_arrow()


HOST_S = 40e-6  # a table whose shortest time is longer timed the host, not single kernels


def is_host_timed(rows: Rows) -> bool:
    """Return whether all times are too long to be those of a single kernel."""
    return len(rows) > 0 and float(rows.seconds.min()) > HOST_S
