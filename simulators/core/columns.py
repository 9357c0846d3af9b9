"""Points and metrics as Arrow columns: the schema of a dataclass, a batch in, a batch out."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.fields import columns_of, hints_of
from simulators.core.folder import FOLDERS

P = TypeVar("P")
M = TypeVar("M")

LEVELS = ("measured", "fitted", "extrapolated", "datasheet")
MEASURED, FITTED, EXTRAPOLATED, DATASHEET = range(len(LEVELS))
"""Evidence levels as positions in `LEVELS`, the best first."""

SHARES = tuple(f"{level}_share" for level in LEVELS)
"""Columns of every result: the share of its time by evidence level."""

Shares = NDArray[np.float64]
"""Shares of time with a row per evidence level and a column per point."""

STATUSES = ("ok", "infeasible", "error", "timeout", "crash")
"""Status of a row. Simulators return `ok` or `infeasible`; engines add the other ones."""

OUTCOME = pa.schema(
    [
        pa.field("status", pa.dictionary(pa.int8(), pa.string())),
        pa.field("reason", pa.string()),
        *(pa.field(name, pa.float64()) for name in SHARES),
    ]
)
"""Columns of every result besides its metrics. Shares add up to 1. They are null for infeasible
points and for simulators without evidence levels."""


@functools.cache
def schema_of(kind: Any) -> pa.Schema:
    """Return the Arrow schema of a point, facts or metrics dataclass; units travel as metadata.

    >>> @dataclass(frozen=True)
    ... class Point:
    ...     model: str
    ...     tp: int = 1
    >>> schema_of(Point).types
    [DataType(string), DataType(int64)]
    """
    return pa.schema(
        [
            pa.field(c.name, _arrow_type(c.hint), metadata={"unit": c.metadata.get("unit", "")})
            for c in columns_of(kind)
        ]
    )


def _arrow_type(hint: Any) -> pa.DataType:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[hint]


def numbers(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """Return a numeric or boolean column as an array (nulls become NaN)."""
    column = batch.column(name)
    if pa.types.is_dictionary(column.type) and not column.indices.null_count:
        values: NDArray[Any] = column.dictionary.to_numpy(zero_copy_only=False)
        decoded: NDArray[Any] = values[column.indices.to_numpy(zero_copy_only=False)]
        return decoded
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def categories(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a column as codes and the distinct values of the codes."""
    column = batch.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    values = column.dictionary.to_pylist()
    codes = column.indices
    if codes.null_count:
        codes, values = codes.fill_null(len(values)), [*values, None]
    return codes.to_numpy(zero_copy_only=False).astype(np.int64), values


def members(batch: pa.RecordBatch, names: Iterable[str]) -> NDArray[np.int64]:
    """Return group numbers: rows with equal values in all named columns have the same number."""
    return _members(batch.num_rows, [categories(batch, name) for name in names])


def _members(
    rows: int, encoded: Iterable[tuple[NDArray[np.int64], list[Any]]]
) -> NDArray[np.int64]:
    member = np.zeros(rows, np.int64)
    for codes, values in encoded:
        if len(values) > 1:
            _, member = np.unique(member * len(values) + codes, return_inverse=True)
    return member


def equal_row_groups(
    batch: pa.RecordBatch, names: Sequence[str]
) -> list[tuple[NDArray[np.int64], dict[str, Any]]]:
    """Return groups of rows with equal values in all named columns: row numbers and values."""
    named = {name: categories(batch, name) for name in names}
    member = _members(batch.num_rows, named.values())
    order = np.argsort(member, kind="stable")
    return [
        (where, {name: values[int(codes[where[0]])] for name, (codes, values) in named.items()})
        for where in np.split(order, np.cumsum(np.bincount(member))[:-1])
        if where.size
    ]


def batch_of(kind: Any, *points: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of points, with defaults for missing fields.

    Raises:
        UnknownNameError: the point type has no such field.
        UserError: a field without a default is missing.
    """
    known = {c.name: c.default for c in columns_of(kind)}
    for name in dict.fromkeys(name for point in points for name in point):
        if name not in known:
            raise UnknownNameError("input", name, tuple(known))
    rows = [known | dict(point) for point in points]
    if missing := [name for name in known if any(row[name] is MISSING for row in rows)]:
        raise UserError(f"{', '.join(missing)} missing: what is explained is one whole design")
    return pa.RecordBatch.from_pylist(rows, schema=schema_of(kind))


def table_of(kind: type, columns: Sequence[NDArray[Any]]) -> pa.RecordBatch:
    """Return columns as a batch of a facts type. `columns` has the order of the fields."""
    schema = schema_of(kind)
    arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def mapped(batch: pa.RecordBatch, name: str, of: Callable[[Any], Any]) -> NDArray[Any]:
    """Return a function of a column's values per row, called once per distinct value."""
    codes, values = categories(batch, name)
    found: NDArray[Any] = np.array([of(value) for value in values])[codes]
    return found


def which(batch: pa.RecordBatch, name: str, of: Callable[[Any], object]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose value fulfils a condition, tested per distinct value."""
    return mapped(batch, name, lambda value: bool(of(value))).astype(bool)


def points_of(kind: type[P], batch: pa.RecordBatch, group: str = "") -> list[P]:
    """Return the rows of a batch as instances of `kind`, a point type or a group of options."""
    hints = hints_of(kind)
    columns = [
        points_of(hints[f.name], batch, f"{group}{f.name}.")
        if is_dataclass(hints[f.name])
        else _cells(batch, f"{group}{f.name}")
        for f in fields(kind)  # type: ignore[arg-type]
    ]
    return [kind(*row) for row in zip(*columns, strict=True)]


def _cells(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column as Python values; equal values of an encoded column are one object."""
    if pa.types.is_dictionary(batch.column(name).type):
        codes, values = categories(batch, name)
        return [values[code] for code in codes.tolist()]
    plain: list[Any] = batch.column(name).to_pylist()
    return plain


def outcome(
    metrics: type,
    columns: Mapping[str, NDArray[Any]],
    *,
    infeasible: Sequence[str] | None = None,
    shares: Shares | None = None,
    sparse: bool = False,
) -> pa.RecordBatch:
    """Return the result of `evaluate` from an array per metric.

    Args:
        metrics: metrics type.
        columns: arrays by metric.
        infeasible: per row the reason why the point is infeasible, or an empty string. Metrics of
            infeasible rows are null.
        shares: shares of time by evidence level; None: unknown.
        sparse: missing columns and NaNs become null.
    """
    schema = schema_of(metrics)
    rows = len(next(iter(columns.values())))
    dead = None if infeasible is None else np.array([bool(r) for r in infeasible], dtype=bool)

    def array(f: pa.Field) -> pa.Array:
        if sparse and f.name not in columns:
            return pa.nulls(rows, f.type)
        column, mask = columns[f.name], dead
        if sparse and column.dtype.kind == "f" and (unknown := np.isnan(column)).any():
            mask = unknown if dead is None else dead | unknown
        return pa.array(column, type=f.type, mask=mask)

    arrays = {f.name: array(f) for f in schema}
    if shares is None:
        evidence = [pa.nulls(rows, pa.float64())] * len(SHARES)
    else:
        evidence = [pa.array(share, mask=dead) for share in shares]
    return _answer(schema, arrays, infeasible, evidence)


def shares_of(level: NDArray[np.int64] | int) -> Shares:
    """Return the shares of points whose whole time has one evidence level.

    >>> shares_of(np.array([FITTED, DATASHEET])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    """
    positions = np.arange(len(LEVELS))[:, None]
    return np.asarray(positions == np.atleast_1d(level), np.float64)


def evaluate_pointwise(
    point: type[P],
    metrics: type[M],
    simulate: Callable[[P], M],
    batch: pa.RecordBatch,
    level: int | Callable[[P], int] | None = None,
) -> pa.RecordBatch:
    """Return the results of `simulate` for a batch. An `Infeasible` exception becomes a row.

    `level` is the evidence level of all results, or of a point, as positions in `LEVELS`.
    """
    schema = schema_of(cast(Any, metrics))
    found: list[M | None] = []
    reasons: list[str] = []
    levels: list[int | None] = []
    for design in points_of(point, batch):
        try:
            found.append(simulate(design))
            levels.append(level(design) if callable(level) else level)
            reasons.append("")
        except Infeasible as verdict:
            found.append(None)
            levels.append(None)
            reasons.append(str(verdict))
    arrays = {
        f.name: pa.array([None if r is None else getattr(r, f.name) for r in found], f.type)
        for f in schema
    }
    evidence = [
        arrays.get(
            name, pa.array([None if at is None else float(at == i) for at in levels], pa.float64())
        )
        for i, name in enumerate(SHARES)
    ]
    return _answer(schema, arrays, reasons, evidence)


def _answer(
    schema: pa.Schema,
    arrays: Mapping[str, pa.Array],
    infeasible: Sequence[str] | None,
    evidence: Sequence[pa.Array],
) -> pa.RecordBatch:
    kept = [f for f in schema if f.name not in SHARES]
    rows = len(evidence[0])
    if infeasible is None:
        codes, reason = np.zeros(rows, np.int8), pa.nulls(rows, pa.string())
    else:
        codes = np.array([bool(r) for r in infeasible], np.int8)
        reason = pa.array([r or None for r in infeasible], pa.string())
    status = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(STATUSES), safe=False)
    return pa.RecordBatch.from_arrays(
        [*(arrays[f.name] for f in kept), status, reason, *evidence],
        schema=pa.schema([*kept, *OUTCOME]),
    )


@dataclass(frozen=True)
class Pointwise(Generic[P, M]):
    """A simulator defined by a function of one point, `simulate(point) -> metrics`.

    Event-driven models use this class; formulas implement `evaluate` on columns instead. A metrics
    type with fields named as `SHARES` states its own evidence shares.
    """

    name: str
    version: int
    point: type[P]
    metrics: type[M]
    simulate: Callable[[P], M]

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Evaluate every row of a batch separately."""
        return evaluate_pointwise(self.point, self.metrics, self.simulate, batch)

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the file that a field's value names, if any."""
        kind: Any = self.point
        names = {c.name: c.metadata.get("names", "") for c in columns_of(kind)}
        folder = FOLDERS.get(names.get(name, ""))
        return () if folder is None else (folder.find(str(value)),)
