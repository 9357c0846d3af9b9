"""Questions to ask of results: the front, its knee, and how large a share of the space it rules.

A point with several objectives has no best value, only a front: the designs for which nothing else
is at least as good everywhere and better somewhere. Grids tie often, so the front is a set of
distinct objective vectors, each with the number of designs that reach it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.contract import Direction
from simulators.core.errors import UserError, suggestion
from sweeper.skyline import distinct_front


def pareto_front(
    results: pl.LazyFrame,
    objectives: Mapping[str, Direction],
    *,
    where: str | None = None,
    per: Sequence[str] = (),
    compiled: bool = True,
) -> pl.DataFrame:
    """Return the non-dominated designs, best in the first objective first.

    One row per distinct vector of objectives (and group), with all columns of `results` and
    `equivalents`, the number of designs that reach exactly this vector. Rows whose status is not
    `ok`, or that lack an objective, are never on the front.

    Args:
        results: rows of metrics, as `Store.scan` returns them.
        objectives: column to `min` or `max`.
        where: an SQL condition rows must meet.
        per: columns; each combination of their values has its own front.
        compiled: whether large tables may use compiled loops; without, nothing is compiled.

    Raises:
        UserError: a column is not there, or `where` is not a condition.

    >>> rows = pl.LazyFrame({"cost": [1, 2, 2, 1], "speed": [1, 3, 1, 1]})
    >>> pareto_front(rows, {"cost": "min", "speed": "max"}).rows()
    [(1, 1, 2), (2, 3, 1)]
    """
    schema = results.collect_schema()
    check_columns(list(objectives), schema.names(), "objective")
    check_columns(per, schema.names(), "per")
    for name in objectives:
        if not (schema[name].is_numeric() or schema[name] in (pl.Boolean, pl.Null)):
            raise UserError(f"objective '{name}' is not a number, but {schema[name]}")
    chosen = results
    if where is not None:
        chosen = chosen.filter(condition(where, schema.names()))
    if "status" in schema:
        chosen = chosen.filter(pl.col("status").cast(pl.String) == "ok")
    columns = [*objectives, *(p for p in per if p not in objectives)]
    try:
        table = chosen.with_row_index("__row").select("__row", *columns).collect()
    except pl.exceptions.PolarsError as error:
        raise UserError(f"where '{where}' cannot be computed: {error}") from error
    groups = table.partition_by(list(per), maintain_order=True) if per and len(table) else [table]
    picked = []
    for group in groups:
        kept, ties = distinct_front(minimised(group, objectives), compiled=compiled)
        picked.append(
            group.select("__row")[kept].with_columns(equivalents=pl.Series(ties, dtype=pl.UInt32))
        )
    wanted = pl.concat(picked).sort("__row")
    front = (
        chosen.with_row_index("__row")
        .filter(pl.col("__row").is_in(wanted["__row"].implode()))
        .collect()
        .sort("__row")
        .with_columns(wanted["equivalents"])
        .drop("__row")
    )
    first, better = next(iter(objectives.items()))
    return front.sort([*per, first], descending=[False] * len(per) + [better == "max"])


def minimised(
    columns: pl.DataFrame | Mapping[str, NDArray[Any]], objectives: Mapping[str, Direction]
) -> NDArray[np.float64]:
    """Return the objectives as a matrix in which smaller is better; missing values are NaN."""
    rows = len(columns) if isinstance(columns, pl.DataFrame) else len(next(iter(columns.values())))
    matrix = np.empty((rows, len(objectives)))
    for j, (name, direction) in enumerate(objectives.items()):
        column = columns[name]
        if isinstance(column, pl.Series):
            column = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        np.multiply(column, -1.0 if direction == "max" else 1.0, out=matrix[:, j], casting="unsafe")
    return matrix


def knee(front: pl.DataFrame, objectives: Mapping[str, Direction]) -> int:
    """Return the row of the front nearest to the best value of every objective at once.

    Each objective is scaled to 0..1 over the front, on a logarithm where all its values are
    positive, and the distance is Euclidean.

    >>> front = pl.DataFrame({"a": [1.0, 2.0, 100.0], "b": [100.0, 2.0, 1.0]})
    >>> knee(front, {"a": "min", "b": "min"})
    1
    """
    if front.is_empty():
        raise UserError("there is no knee: the front is empty")
    values = minimised(front, objectives)
    for j, direction in enumerate(objectives.values()):
        column = -values[:, j] if direction == "max" else values[:, j]
        if (column > 0).all():
            values[:, j] = -np.log(column) if direction == "max" else np.log(column)
    low, high = values.min(axis=0), values.max(axis=0)
    scaled = (values - low) / np.where(high > low, high - low, 1.0)
    return int(np.argmin((scaled**2).sum(axis=1)))


def local_front(
    columns: Mapping[str, NDArray[Any]], objectives: Mapping[str, Direction]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distinct objective vectors on the front of some columns, and the ties of each."""
    kept, ties = distinct_front(minimised(columns, objectives))
    return np.column_stack([np.asarray(columns[n], np.float64)[kept] for n in objectives]), ties


def merge_fronts(
    fronts: Sequence[NDArray[np.float64]],
    ties: Sequence[NDArray[np.int64]],
    objectives: Mapping[str, Direction],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the front of several fronts; the ties of equal vectors add up."""
    values, together = np.concatenate(fronts), np.concatenate(ties)
    kept, _ = distinct_front(minimised(dict(zip(objectives, values.T, strict=True)), objectives))
    vectors, place = np.unique(values, axis=0, return_inverse=True)
    totals = np.bincount(place.ravel(), weights=together, minlength=len(vectors))
    return values[kept], totals[place.ravel()[kept]].astype(np.int64)


def condition(where: str, columns: Sequence[str]) -> pl.Expr:
    """Return an SQL condition as an expression.

    Raises:
        UserError: it is not SQL, or names a column that is not there.
    """
    from sweeper.space import names_in

    check_columns(names_in(where, f"where '{where}'"), columns, f"where '{where}'")
    return pl.sql_expr(where)


def check_columns(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise `UserError` for the first name that is no column, with the nearest that is."""
    for name in names:
        if name not in known:
            raise UserError(
                f"{what}: there is no column '{name}'{suggestion(name, known)}\n"
                f"Known: {', '.join(known)}"
            )
