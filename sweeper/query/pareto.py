"""The Pareto front of results and the knee of the front; rows and objectives of large tables.

The front holds the designs that no other design dominates (at least as good in every objective,
better in one). Designs of a grid often tie, so the front is a set of distinct objective vectors,
each with the number of designs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix, distinct_front, group_fronts
from sweeper.space.design_space import Objectives, check_directions
from sweeper.space.sql import check_columns, computed, condition

STATUS = "status"
FEASIBLE = pl.col(STATUS).cast(pl.String) == "ok"
"""Whether a row is a feasible design with metrics."""
_AT_ONCE, _WHOLE_ROWS = 500_000, 100_000
"""Rows of some columns, and rows of all columns, that are held in memory at a time.

The front of a larger table is the front of its parts' fronts.
"""
_FEW_PIECES = 64
"""Pieces of `_WHOLE_ROWS` that are read alone; for more of them, reading all rows takes less."""


def pareto_front(
    results: pl.LazyFrame,
    objectives: Objectives,
    *,
    where: str | None = None,
    per: Sequence[str] = (),
) -> pl.DataFrame:
    """Return the non-dominated designs, best in the first objective first.

    One row per distinct vector of objectives (and group), with all columns of `results` and
    `equivalents`, the number of designs with this vector. The first columns are the axes that vary
    in a sweep, and the objectives. Rows with a status other than `ok` and
    rows without a value of an objective are excluded. `per` names columns; each combination of
    their values has a separate front.

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
    if where is not None:
        condition(where, schema)
    columns = [*objectives, *(p for p in per if p not in objectives)]
    found = [_fronts(table, objectives, per) for table in _pieces(results, columns, where)]
    wanted = _merged(found, objectives, per).sort("__row")
    front = rows_at(results, wanted["__row"]).sort("__row")
    front = front.with_columns(wanted["equivalents"]).drop("__row")
    names = front.columns
    varied = names[: names.index(STATUS)] if STATUS in names else []  # of a sweep, its axes
    front = front.select(list(dict.fromkeys([*varied, *(objectives if varied else ()), *names])))
    first, better = next(iter(objectives.items()))
    return front.sort([*per, first], descending=[False] * len(per) + [better == "max"])


def qualifying(results: pl.LazyFrame, *, where: str | None = None) -> pl.LazyFrame:
    """Return the feasible rows that meet an SQL condition."""
    schema = results.collect_schema()
    chosen = results
    if where is not None:
        chosen = chosen.filter(condition(where, schema))
    if "status" in schema:
        chosen = chosen.filter(FEASIBLE)
    return chosen


def rows_at(results: pl.LazyFrame, numbers: pl.Series) -> pl.DataFrame:
    """Return the rows with these numbers in ascending order; the column `__row` has the numbers.

    A few pieces of the results that hold all these rows are read alone.
    """
    wanted = np.unique(numbers.to_numpy().astype(np.int64))
    found = [numbered(results).head(0).collect()]
    pieces = np.split(wanted, np.flatnonzero(np.diff(wanted // _WHOLE_ROWS)) + 1)
    if len(pieces) <= _FEW_PIECES:
        for some in filter(len, pieces):
            first, last = int(some[0]), int(some[-1])
            piece = results.slice(first, last - first + 1).with_row_index("__row", offset=first)
            found.append(piece.collect()[some - first])
        return pl.concat(found)
    return picked(numbered(results), wanted, _WHOLE_ROWS)


def picked(query: pl.LazyFrame, places: Ints, at_once: int | None = None) -> pl.DataFrame:
    """Return the rows at some ascending places of a query, all of which is read."""
    found, seen = [], 0
    for table in batches(query, at_once):
        first, last = np.searchsorted(places, (seen, seen + len(table)))
        found.append(table[places[first:last] - seen])
        seen += len(table)
    return pl.concat(found)


def alike(design: Mapping[str, Any], names: Iterable[str]) -> pl.Expr:
    """Return the condition that a row equals a design in the named columns."""
    same = (pl.col(name).eq_missing(design[name]) for name in names)
    return pl.all_horizontal(pl.lit(value=True), *same)


def unstated(
    results: pl.LazyFrame, objectives: Iterable[str], *, where: str | None = None
) -> list[str]:
    """Return the objectives without a value in any qualifying row; these prevent a front.

    The list is empty if no row qualifies.

    >>> rows = pl.LazyFrame({"usd": [1.0, 2.0], "wait_s": [None, None]})
    >>> unstated(rows, ["usd", "wait_s"])
    ['wait_s']
    """
    names = list(objectives)
    found = qualifying(results, where=where).select(pl.len().alias("rows"), pl.col(names).count())
    with computed(f"where '{where}'"):
        counts = found.collect(engine="streaming").row(0, named=True)
    return [name for name in names if counts["rows"] and not counts[name]]


def _fronts(table: pl.DataFrame, objectives: Objectives, per: Sequence[str]) -> pl.DataFrame:
    values = minimised(table, objectives)
    if per:
        kept, ties = group_fronts(values, group_numbers(table, per))
    else:
        kept, ties = distinct_front(values)
    front = table.filter(_mask(len(table), kept))
    return front.with_columns(equivalents=pl.Series(ties, dtype=pl.UInt32))


def _mask(rows: int, kept: Ints) -> pl.Series:
    """Return a mask of the kept rows: taking them by number would first join a table's pieces."""
    mask = np.zeros(rows, bool)
    mask[kept] = True
    return pl.Series(mask)


def group_numbers(table: pl.DataFrame, per: Sequence[str]) -> Ints:
    """Return the group number of each row; rows of a group have equal values of `per`.

    >>> group_numbers(pl.DataFrame({"a": ["x", "y", "x"]}), ["a"]).tolist()
    [0, 1, 0]
    """
    keyed = table.select(per)
    known = keyed.unique(maintain_order=True).with_row_index("__group")
    joined = keyed.join(known, on=list(per), how="left", nulls_equal=True, maintain_order="left")
    return joined["__group"].cast(pl.Int64).to_numpy()


def _merged(found: list[pl.DataFrame], objectives: Objectives, per: Sequence[str]) -> pl.DataFrame:
    """Return the front of the fronts of several tables; the counts of equal rows are added."""
    if len(found) == 1:
        return found[0]
    together = pl.concat(found)
    alike = list(dict.fromkeys([*per, *objectives]))
    totals = together.group_by(alike).agg(pl.col("equivalents").sum())
    best = _fronts(together.drop("equivalents"), objectives, per)
    return best.drop("equivalents").join(totals, on=alike, how="left", nulls_equal=True)


def objective_matrix(
    results: pl.LazyFrame, objectives: Objectives, *, where: str | None = None
) -> tuple[Matrix, Ints]:
    """Return the objectives of the qualifying rows, to be minimised, and the row numbers.

    The rows are read in pieces, so that the matrix takes most of the memory.
    """
    rows, filled = _count(results), 0
    matrix, numbers = np.empty((rows, len(objectives))), np.empty(rows, np.int64)
    for some, which in objective_pieces(results, objectives, where=where):
        matrix[filled : filled + len(some)] = some
        numbers[filled : filled + len(some)] = which
        filled += len(some)
    return matrix[:filled], numbers[:filled]


def objective_pieces(
    results: pl.LazyFrame, objectives: Objectives, *, where: str | None = None
) -> Iterator[tuple[Matrix, Ints]]:
    """Yield the result of `objective_matrix` in pieces."""
    for some in _pieces(results, list(objectives), where):
        yield minimised(some, objectives), some["__row"].to_numpy().astype(np.int64)


def _pieces(
    results: pl.LazyFrame, columns: Sequence[str], where: str | None
) -> Iterator[pl.DataFrame]:
    """Yield the qualifying rows in pieces, with row numbers in `__row`."""
    query = qualifying(numbered(results), where=where).select("__row", *columns)
    with computed(f"where '{where}'"):
        yield from batches(query)


def batches(query: pl.LazyFrame, at_once: int | None = None) -> Iterator[pl.DataFrame]:
    """Yield the rows of a query in order, in pieces of so many rows; at least one piece.

    Every file is opened once, where slices of the query would open all files before them again.
    """
    table = None
    for table in query.collect_batches(chunk_size=at_once or _AT_ONCE):
        yield table
    if table is None:
        yield query.head(0).collect()


def sampled(query: pl.LazyFrame, every: int) -> Iterator[pl.DataFrame]:
    """Yield one row, at random, of each `every` consecutive rows of a query, in pieces.

    Rows at equal distances could all have one value of the fastest axis of a grid.
    """
    random, seen = np.random.default_rng(0), 0
    for table in batches(query):
        starts = np.arange(-seen % every, len(table), every)
        drawn = starts + random.integers(every, size=len(starts))
        yield table.filter(_mask(len(table), np.minimum(drawn, len(table) - 1)))
        seen += len(table)


def numbered(results: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows with their numbers in the column `__row`."""
    return results.with_row_index("__row")


def _count(results: pl.LazyFrame) -> int:
    return int(results.select(pl.len()).collect().item())


def minimised(columns: pl.DataFrame | Mapping[str, NDArray[Any]], objectives: Objectives) -> Matrix:
    """Return the objectives as a matrix to be minimised; missing values are NaN."""
    check_directions(objectives)
    rows = len(columns) if isinstance(columns, pl.DataFrame) else len(next(iter(columns.values())))
    matrix = np.empty((rows, len(objectives)), order="F")  # columns are written and compared
    for j, (name, direction) in enumerate(objectives.items()):
        column = columns[name]
        if isinstance(column, pl.Series):
            column = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        np.multiply(column, -1.0 if direction == "max" else 1.0, out=matrix[:, j], casting="unsafe")
    return matrix


def knee(front: pl.DataFrame, objectives: Objectives) -> int:
    """Return the row of the front nearest to the ideal point, the best value of every objective.

    Each objective is scaled to 0..1 over the front, logarithmically if all values are positive. The
    distance is Euclidean.

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
    columns: pl.DataFrame | Mapping[str, NDArray[Any]], objectives: Objectives
) -> Matrix:
    """Return the distinct objective vectors on the front of columns."""
    kept, _ = distinct_front(minimised(columns, objectives))
    return np.column_stack([np.asarray(columns[n], np.float64)[kept] for n in objectives])
