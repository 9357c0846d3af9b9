"""Point numbers: a point is a number in mixed radix over the factors of a space, the first slowest.

Neighbouring points thus share expensive preparation. Axes that move together (`zip`, `union`) form
one factor. Work is sent to workers as a `Span` of point numbers or as the numbers themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import schema_of
from simulators.core.contract import load_simulator
from sweeper.space.axes import Factor, Scalar

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Span:
    """A range of point numbers, except the sorted numbers `without`, which have rows already."""

    lo: int
    hi: int
    without: Index = field(default_factory=lambda: np.empty(0, np.int64), compare=False)

    def __len__(self) -> int:
        return self.hi - self.lo - len(self.without)

    def index(self) -> Index:
        """Return the point numbers."""
        numbers = np.arange(self.lo, self.hi, dtype=np.int64)
        return np.delete(numbers, self.without - self.lo) if len(self.without) else numbers

    def cut(self, lo: int, hi: int) -> Span:
        """Return the part of the range from `lo` to `hi`."""
        first, last = np.searchsorted(self.without, (lo, hi))
        return Span(lo, hi, self.without[first:last])


Batch = Span | Index
"""Work for a worker: a range of point numbers, or an array of point numbers."""


def numbers(batch: Batch) -> Index:
    """Return the point numbers of a batch."""
    return batch.index() if isinstance(batch, Span) else batch


def width(batch: Batch) -> int:
    """Return the number of points between the ends of a batch, including omitted points."""
    return batch.hi - batch.lo if isinstance(batch, Span) else len(batch)


def cut(batch: Batch, first: int, last: int) -> Batch:
    """Return the part of a batch between two positions from its start."""
    if isinstance(batch, Span):
        return batch.cut(batch.lo + first, min(batch.lo + last, batch.hi))
    return batch[first:last]


def split(batch: Batch, pieces: int) -> list[Batch]:
    """Return up to `pieces` parts of a batch, of nearly equal size and none empty.

    >>> [(b.lo, b.hi) for b in split(Span(3, 20), 3)]
    [(3, 9), (9, 15), (15, 20)]
    """
    size = -(-width(batch) // pieces)
    parts = [cut(batch, start, start + size) for start in range(0, width(batch), size or 1)]
    return [part for part in parts if len(part)]


def number_of(codes: Iterable[NDArray[np.integer[Any]]], sizes: Index) -> Index:
    """Return point numbers from the row that points take of each factor, the first slowest.

    >>> number_of(np.array([[1], [2]]), np.array([3, 4])).tolist()
    [6]
    """
    total: Any = np.int64(0)
    for code, size in zip(codes, sizes.tolist(), strict=True):
        total = total * size + np.asarray(code, np.int64)
    return np.asarray(total, np.int64)


def covered(index: Index, done: Sequence[Span]) -> Mask:
    """Return a mask of the numbers that `done`, sorted disjoint spans, contain."""
    if not done:
        return np.zeros(len(index), bool)
    home = np.searchsorted(np.array([span.lo for span in done]), index, side="right") - 1
    inside = (home >= 0) & (index < np.array([span.hi for span in done])[home])
    holes = np.concatenate([span.without for span in done])
    return inside & ~np.isin(index, holes) if len(holes) else inside


def subtract(span: Span, done: Sequence[Span], answered: Index) -> Iterator[Span]:
    """Yield the parts of a span outside finished spans, without the sorted `answered` numbers."""
    lo = span.lo
    for other in [*done, Span(span.hi, span.hi)]:
        hi = min(max(other.lo, lo), span.hi)
        if hi > lo:
            gone = answered[np.searchsorted(answered, lo) : np.searchsorted(answered, hi)]
            if len(gone) < hi - lo:
                yield Span(lo, hi, gone)
        lo = max(lo, min(other.hi, span.hi))


Codes = NDArray[np.int32]
CODE = "code"  # the column of a factor's table that numbers its rows


@dataclass(frozen=True)
class Product:
    """All combinations of the rows of some factors, as points of a simulator.

    The simulator's point type gives every column its type; the factors set every field of it.
    """

    simulator: str
    factors: tuple[Factor, ...]

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """Points before constraints (`len` cannot pass 2**63; this can)."""
        return math.prod(len(f) for f in self.factors)

    @property
    def sizes(self) -> Index:
        """The number of rows of each factor."""
        return np.array([len(f) for f in self.factors], np.int64)

    @property
    def axes(self) -> dict[str, tuple[Scalar, ...]]:
        """The values of each column of a point, in the order of the factors."""
        return {name: values for f in self.factors for name, values in f.columns.items()}

    def stretch(self, names: Sequence[str]) -> int:
        """Return the number of consecutive points that contain all values of these columns.

        Points that differ only in these columns and in faster columns are neighbours.
        """
        held = [any(name in factor.columns for name in names) for factor in self.factors]
        first = next((i for i, f in enumerate(self.factors) if held[i] and len(f) > 1), None)
        return 1 if first is None else math.prod(len(f) for f in self.factors[first:])

    @property
    def varied(self) -> tuple[str, ...]:
        """The columns that take more than one value."""
        return tuple(name for name, values in self.axes.items() if len(set(values)) > 1)

    def codes(self, where: Batch) -> list[Codes]:
        """Return the row of each factor that every point takes, one array per factor."""
        varied = [i for i, factor in enumerate(self.factors) if len(factor) > 1]
        codes: list[Codes] = [np.broadcast_to(np.int32(0), len(where))] * len(self.factors)
        if isinstance(where, Span) and len(where):
            places = where.index() - where.lo if len(where.without) else slice(None)
            stride = 1
            for i in reversed(varied):
                codes[i] = _digits(where.lo, where.hi, stride, len(self.factors[i]))[places]
                stride *= len(self.factors[i])
            return codes
        rows = np.unravel_index(numbers(where), self.sizes[varied]) if varied else ()
        for i, row in zip(varied, rows, strict=True):
            codes[i] = row.astype(np.int32)
        return codes

    def batch(self, where: Batch, kept: Mask | None = None) -> pa.RecordBatch:
        """Return points as dictionary-encoded columns, ready for the simulator."""
        columns: dict[str, pa.Array] = {}
        for factor, codes in zip(self.factors, self.codes(where), strict=True):
            chosen = pa.array(codes if kept is None else codes[kept])
            for name in factor.columns:
                columns[name] = _encoded(chosen, self.dictionaries[name])
        names = self.schema.names
        return pa.RecordBatch.from_arrays([columns[n] for n in names], names)

    def points(self, where: Batch, names: Iterable[str] | None = None) -> pl.DataFrame:
        """Return points by number as plain columns.

        `names` are the columns in their order; None: all columns of the point type.
        """
        names = self.schema.names if names is None else list(names)
        wanted = set(names)
        columns = {
            name: self.dictionaries[name].take(pa.array(codes))
            for factor, codes in zip(self.factors, self.codes(where), strict=True)
            for name in factor.columns
            if name in wanted
        }
        table = pa.table({name: columns[name] for name in names})
        return pl.DataFrame(pl.from_arrow(table))

    def index_of(
        self, points: pl.DataFrame, trusted: Sequence[pl.DataFrame] | None = None
    ) -> Index:
        """Return the number of each point; -1 for a point outside of the space.

        Constraints are ignored. `trusted` holds the rows of each factor that are recognised, with a
        column `code`; None: all rows.
        """
        tables = trusted or self.factor_tables
        inside = _are(points, [t for t, f in zip(tables, self.factors, strict=True) if len(f) == 1])
        return np.where(inside, self.index_among(points, tables), -1)

    def index_among(
        self, points: pl.DataFrame, trusted: Sequence[pl.DataFrame] | None = None
    ) -> Index:
        """Return the same for points that have the values of all fixed axes."""
        found = points.lazy()
        varied: list[tuple[str, int]] = []  # the column of a factor's codes, and its values
        for factor, table in zip(self.factors, trusted or self.factor_tables, strict=True):
            if len(factor) > 1:
                code = f"{CODE}{len(varied)}"
                varied.append((code, len(factor)))
                found = found.join(
                    table.lazy().rename({CODE: code}),
                    on=list(factor.columns),
                    how="left",
                    nulls_equal=True,
                    maintain_order="left",
                )
        codes = found.select(pl.col(code).fill_null(-1) for code, _ in varied).collect()
        total, inside = np.zeros(len(points), np.int64), np.ones(len(points), bool)
        for code, values in varied:
            inside &= (digits := codes[code].to_numpy()) >= 0
            total = total * values + digits
        return np.where(inside, total, -1)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns of a point."""
        return schema_of(load_simulator(self.simulator).point)

    @functools.cached_property
    def dictionaries(self) -> dict[str, pa.Array]:
        """The values of each column, typed."""
        return {n: pa.array(v, self.schema.field(n).type) for n, v in self.axes.items()}

    @functools.cached_property
    def factor_tables(self) -> tuple[pl.DataFrame, ...]:
        """A table per factor: its rows and their `code`."""
        code = pl.int_range(pl.len(), dtype=pl.Int64)
        return tuple(
            pl.DataFrame(
                pl.from_arrow(pa.table({n: self.dictionaries[n] for n in factor.columns}))
            ).with_columns(code.alias(CODE))
            for factor in self.factors
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _digits(lo: int, hi: int, stride: int, size: int) -> Codes:
    """Return the digit with a stride and a number of values of each number from `lo` to `hi`.

    >>> _digits(5, 12, 3, 2).tolist()
    [1, 0, 0, 0, 1, 1, 1]
    """
    period = stride * size
    if period <= hi - lo:
        digits = np.repeat(np.arange(size, dtype=np.int32), stride)
        start = lo % period
        return np.tile(digits, -(-(start + hi - lo) // period))[start : start + hi - lo]
    runs = np.arange(lo // stride, (hi - 1) // stride + 1)
    ends = np.minimum((runs + 1) * stride, hi) - np.maximum(runs * stride, lo)
    return np.repeat((runs % size).astype(np.int32), ends)


def _are(points: pl.DataFrame, fixed: Sequence[pl.DataFrame]) -> Mask:
    if not all(map(len, fixed)):
        return np.zeros(len(points), bool)
    values = {name: one[name] for one in fixed for name in one.columns if name != CODE}
    alike = [pl.col(n).eq_missing(pl.lit(v[0], v.dtype)) for n, v in values.items()]
    if not alike:
        return np.ones(len(points), bool)
    return points.select(pl.all_horizontal(alike)).to_series().to_numpy()


def _encoded(codes: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    """Return a dictionary-encoded column; nulls are missing codes, as in Parquet."""
    if values.null_count:
        import pyarrow.compute as pc  # here: its import takes 0.1 CPU-seconds

        places = pc.cumulative_sum(pc.cast(values.is_valid(), pa.int32()))
        codes = pc.if_else(values.is_valid(), pc.subtract(places, 1), None).take(codes)
        values = values.drop_null()
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)  # taken modulo their number
