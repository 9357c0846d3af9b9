"""Claims: the schema of their files, frames of predictions, and their evaluation to lines.

    [[claims]]
    id = "measured_steps.mean"
    name = "step time, {source}"
    predictions = "training:measured_steps"
    split = "model and GPU left out"
    where = "NOT is_mixture"
    by = ["source"]
    statistic = "mean"
    at_most = 8.0

    [inputs."training:measured_steps"]
    splits = 3

`predictions` names a function of a module beside the file, a predictor. It maps the folder of
reference tables to a frame, or yields rows and frames, with the columns `predicted` and `measured`,
and where known `lo` and `hi` (the 90 % prediction interval), `peer` (another tool's prediction),
`baseline` (a naive prediction), `label` (of the row), `skipped` (reason for a missing prediction)
and `held_out` (whether no fit has seen the row).

Statistics are functions of the column of predictions, so that the same statistic applies to our
predictions, another tool's and a naive baseline. Relative errors are in percent.

Lines are yielded as they are computed. A claim that raises is a failed line and does not stop the
others; a claim whose measured table is absent says so and neither passes nor fails.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from simulators.core.calibration import reference_folder
from simulators.core.checks import COVERAGE, ERROR, Check
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import Folder, import_file, read_toml

FOLDER = Folder("claim", "claims", package="lab")

TEST, ALL = "test", "all"
"""Rows that no fit has seen, and all rows."""

LARGE_CHANGE = 0.02
"""Smallest relative change of a measured ratio whose direction is judged."""

Row = TypeVar("Row")
Cells = Mapping[str, Any]
EMPTY = {"predicted": pl.Float64, "measured": pl.Float64}


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a claims file, evaluated to a line per group of rows."""

    name: str  # of the line; {column} is the value of a grouping column
    id: str = ""  # with the values of `by` the identifier of a line, which no renaming changes
    predictions: str = ""  # "module:function"
    split: str = ""  # how the rows were held out of the fits, in words
    where: str = ""  # an SQL condition on the rows
    by: tuple[str, ...] = ()  # columns; each combination of values is a line
    mean_over: tuple[str, ...] = ()  # the statistic is averaged over these groups
    statistic: str = "mean"
    column: str = "predicted"  # column that the statistic is computed from
    at_most: float | dict[str, float] | str | None = None  # a number, one per group, or a column
    at_least: float | str | None = None
    unit: str = "%"
    kind: str = ERROR
    note: str = ""
    is_detail: bool = False  # stored with the product, printed only with `--details`

    @property
    def line_kind(self) -> str:
        """The kind of the line: prediction intervals are judged by their coverage."""
        return COVERAGE if self.statistic == "coverage" else self.kind


class ClaimsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a claims file."""

    claims: tuple[Claim, ...]
    inputs: dict[str, dict[str, Any]] = {}  # keyword arguments of predictors, by "module:function"


def load_claims(file: Path) -> ClaimsFile:
    """Return the contents of a claims file. Raises UserError if an entry is not valid."""
    try:
        return msgspec.convert(read_toml(file), ClaimsFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{file}: {error}") from error


def load_function(file: Path, named: str) -> Callable[..., Any]:
    """Return a function "module:function" of a module beside a claims file.

    Raises UserError if there is no such module or function.
    """
    name, _, function = named.partition(":")
    code = file.with_name(f"{name}.py")
    if not code.is_file():
        raise UserError(f"{file}: there is no {code.name} for '{named}'")
    is_shipped = file.is_relative_to(FOLDER.shipped)
    module = importlib.import_module(f"lab.claims.{name}") if is_shipped else import_file(code)
    if not hasattr(module, function):
        raise UserError(f"{file}: {code} has no function '{function}'")
    return getattr(module, function)  # type: ignore[no-any-return]


def predict(
    rows: Iterable[Row], answer: Callable[[Row], Cells | Iterable[Cells]]
) -> Iterator[Cells]:
    """Yield the answers to measured rows; the cell `skipped` is the reason for a missing one.

    `answer` returns the cells of one row (`predicted`, `measured` ...) or of several.
    """
    for row in rows:
        try:
            cells = answer(row)
            found: list[Cells] = [cells] if isinstance(cells, Mapping) else list(cells)
        except Infeasible as error:
            found = [{"skipped": error.reason}]
        except UserError as error:
            found = [{"skipped": str(error).partition("\n")[0]}]
        yield from found


def figures(named: str, values: Mapping[str, tuple[Any, Any]], **cells: Any) -> list[Cells]:
    """Return a row for each predicted and measured value; column `named` holds its name."""
    return [
        {**cells, named: name, "predicted": predicted, "measured": measured}
        for name, (predicted, measured) in values.items()
    ]


def columns(**cells: Any) -> pl.DataFrame:
    """Return a frame of arrays of equal length; single values are repeated."""
    length = max((len(c) for c in cells.values() if isinstance(c, np.ndarray | list)), default=0)
    return pl.DataFrame(
        {
            name: cell if isinstance(cell, np.ndarray | list) else [cell] * length
            for name, cell in cells.items()
        }
    )


def together(parts: Iterable[Cells | pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of several frames, then single rows; columns that a part lacks are null."""
    frames: list[pl.DataFrame] = []
    rows: list[Cells] = []
    for part in parts:
        if not isinstance(part, pl.DataFrame):
            rows.append(part)
        elif part.height:
            frames.append(part)
    if rows or not frames:
        schema = None if rows else EMPTY
        frames.append(pl.DataFrame(rows, schema, infer_schema_length=None))
    return pl.concat(frames, how="diagonal_relaxed")


def error(column: str) -> pl.Expr:
    """Return signed relative errors in percent."""
    return 100.0 * (pl.col(column) / pl.col("measured") - 1.0)


def _wrong_sign(column: str) -> pl.Expr:
    predicted, measured = pl.col(column) - 1.0, pl.col("measured") - 1.0
    wrong = predicted * measured <= 0.0
    return 100.0 * wrong.filter(measured.abs() > LARGE_CHANGE).mean()


def _log_ratio(column: str) -> pl.Expr:
    return (pl.col("measured") / pl.col(column)).log().abs()


def _difference(column: str) -> pl.Expr:
    return (pl.col(column) - pl.col("measured")).abs()


STATISTICS: dict[str, Callable[[str], pl.Expr]] = {
    "mean": lambda column: error(column).abs().mean(),
    "median": lambda column: error(column).abs().median(),
    "p90": lambda column: error(column).abs().quantile(0.9, "linear"),
    "worst": lambda column: error(column).abs().max(),
    "bias": lambda column: error(column).mean(),
    "within_2x": lambda column: 100.0 * _log_ratio(column).le(np.log(2.0)).mean(),
    "rank": lambda column: pl.corr(column, "measured", method="spearman"),
    "coverage": lambda _: 100.0 * pl.col("measured").is_between("lo", "hi").mean(),
    "wrong_sign": _wrong_sign,
    "mean_log": lambda column: _log_ratio(column).mean(),
    "difference": lambda column: _difference(column).mean(),
    "largest_difference": lambda column: _difference(column).max(),
    "mean_difference": lambda column: (pl.col(column).mean() - pl.col("measured").mean()).abs(),
    # Of rows without a measurement, `predicted` is the figure itself.
    "value": lambda column: pl.col(column).mean(),
    "median_value": lambda column: pl.col(column).median(),
    "largest": lambda column: pl.col(column).max(),
    "share": lambda column: 100.0 * pl.col(column).cast(pl.Float64).mean(),
    "count": lambda column: pl.col(column).cast(pl.Float64).sum(),
}
"""By the name in a claim; differences are in the unit of the rows."""

ERRORS = ("mean", "median", "p90", "worst")
"""Statistics whose note describes the distribution of errors."""

Frames = Callable[[str], pl.DataFrame | Exception]


def run(
    group: str, reference: Path | None = None, rows: str = TEST, *, details: bool = False
) -> Iterator[Check]:
    """Yield the lines of a group of claims as they are computed.

    `group` names a claims file, such as "kernels". `reference`: the folder of measured tables; if
    None, $SWEEPER_REFERENCE. `rows`: `test` for rows that no fit has seen, `all` for every row.
    `details`: also yield the lines of single GPUs, models and submissions. Raises UserError if the
    group or the folder does not exist.
    """
    file, tables = FOLDER.find(group), measured_tables(reference)
    content = load_claims(file)
    frames = functools.cache(functools.partial(_predictions, file, content.inputs, tables, rows))
    for claim in content.claims:
        if details or not claim.is_detail:
            yield from _guarded(claim, frames)


def measured_tables(reference: Path | None) -> Path:
    """Return the folder given, else $SWEEPER_REFERENCE. Raises UserError if there is none."""
    folder = reference or reference_folder()
    if folder is None or not folder.is_dir():
        raise UserError(
            f"there is no measured data{f' in {reference}' if reference else ''}; name its folder "
            "by --reference DIR or $SWEEPER_REFERENCE"
        )
    return folder


def _predictions(
    file: Path, inputs: Mapping[str, Mapping[str, Any]], reference: Path, rows: str, named: str
) -> pl.DataFrame | Exception:
    """Return the frame of a predictor, or the exception it raised, shared by all its claims."""
    try:
        found = load_function(file, named)(reference, **inputs.get(named, {}))
        frame = found if isinstance(found, pl.DataFrame) else together(found)
    except Exception as error:  # noqa: BLE001 - reported as a failed line
        return error
    return frame.filter("held_out") if "held_out" in frame.columns and rows == TEST else frame


def _guarded(claim: Claim, frames: Frames) -> Iterator[Check]:
    note, ok = "", None
    try:
        frame = frames(claim.predictions)
        if isinstance(frame, Exception):
            raise frame
        yield from lines_of(claim, frame)
    except UserError as error:
        note = f"absent: {str(error).partition(chr(10))[0]}"
    except Exception as error:  # noqa: BLE001 - one failing claim must not hide the others
        note, ok = f"failed: {type(error).__name__}: {error}", False
    if note:
        kind = claim.line_kind
        yield Check(claim.name, None, claim.unit, ok=ok, note=note, kind=kind, id=claim.id)


def lines_of(claim: Claim, frame: pl.DataFrame) -> Iterator[Check]:
    """Yield the lines of a claim on its predicted and measured rows.

    >>> rows = pl.DataFrame({"gpu": ["a", "b"], "predicted": [1.1, 1.0], "measured": [1.0, 1.0]})
    >>> claim = Claim(name="time on {gpu}", by=("gpu",), at_most=5.0)
    >>> [(line.name, round(line.value, 1), line.verdict) for line in lines_of(claim, rows)]
    [('time on a', 10.0, 'MISSED'), ('time on b', 0.0, 'ok')]
    """
    skipped = ""
    if "skipped" in frame.columns:
        reasons = frame["skipped"].drop_nulls().value_counts(sort=True)
        skipped = "".join(f"; {n:,} rows skipped: {why}" for why, n in reasons.iter_rows())
    rows = frame.filter(pl.col(claim.column).is_not_null())
    if claim.where:
        rows = rows.filter(pl.sql_expr(claim.where))
    if not claim.by:
        yield _line(claim, claim.name, "", rows, skipped)
        return
    for key, part in rows.group_by(claim.by, maintain_order=True):
        names = dict(zip(claim.by, key, strict=True))
        yield _line(claim, claim.name.format(**names), " ".join(map(str, key)), part, skipped)


def _line(claim: Claim, name: str, key: str, rows: pl.DataFrame, skipped: str) -> Check:
    kind, identifier = claim.line_kind, f"{claim.id} {key}".strip()
    if rows.is_empty():
        note = f"no rows{skipped}"
        return Check(name, None, claim.unit, ok=False, note=note, kind=kind, id=identifier)
    value = _value(claim, rows, claim.column)
    least, most = (_limit(claim, rows, key, limit) for limit in (claim.at_least, claim.at_most))
    ok = False if value is None else None
    if value is not None and (least, most) != (None, None):
        ok = (least is None or value >= least) and (most is None or value <= most)
    count = rows["row"].n_unique() if "row" in rows.columns else rows.height
    limit = most if least is None else least
    peer = _value(claim, rows, "peer")
    note = _note(claim, rows) + skipped
    return Check(name, value, claim.unit, limit, ok, count, note, kind, peer, identifier)


def _limit(
    claim: Claim, rows: pl.DataFrame, key: str, limit: float | dict[str, float] | str | None
) -> float | None:
    if isinstance(limit, dict):
        return limit.get(key)
    return _value(claim, rows, limit) if isinstance(limit, str) else limit


def _value(claim: Claim, rows: pl.DataFrame, column: str) -> float | None:
    """Return the statistic of the rows with a prediction in a column; None if there are none."""
    is_interval = claim.statistic == "coverage" and column != claim.column
    if column not in rows.columns or is_interval:
        return None
    values = _statistics(claim, rows.filter(pl.col(column).is_not_null()), column)
    value = values["value"].drop_nulls().mean()
    return None if value is None or value != value else float(value)  # type: ignore[arg-type]


def _statistics(claim: Claim, rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the statistic in a column `value`: of each group that is averaged over, or of all."""
    statistic = STATISTICS[claim.statistic](column).alias("value")
    if claim.mean_over:
        return rows.group_by(claim.mean_over, maintain_order=True).agg(statistic)
    return rows.select(statistic)


def _note(claim: Claim, rows: pl.DataFrame) -> str:
    parts = [claim.split, claim.note]
    if claim.mean_over:
        means = _statistics(claim, rows, claim.column)
        *names, value = means.row(int(means["value"].arg_max() or 0))
        label = " ".join(map(str, names))
        parts.append(f"mean of {means.height} groups, largest {value:.1f} ({label})")
        parts += bias_and_coverage(rows) if claim.statistic in ERRORS else []
    elif claim.statistic in ERRORS and rows.height > 1:
        parts.append(described(rows))
    elif rows.height == 1 and "label" in rows.columns:
        parts.append(str(rows["label"][0]))
    if (baseline := _value(claim, rows, "baseline")) is not None:
        parts.append(f"baseline {baseline:.1f}")
    return "; ".join(part for part in parts if part)


def bias_and_coverage(rows: pl.DataFrame) -> list[str]:
    """Return the mean signed error, and the share of rows inside their intervals if they have any.

    >>> columns = {"predicted": [0.9, 1.04], "measured": [1.0, 1.0], "lo": 0.95, "hi": 1.1}
    >>> bias_and_coverage(pl.DataFrame(columns))
    ['bias -3.0', '100 % in their 90 % interval']
    """
    found = [f"bias {rows.select(error('predicted')).to_series().to_numpy().mean():+.1f}"]
    if {"lo", "hi"} <= set(rows.columns):
        inside = rows.select(pl.col("measured").is_between("lo", "hi")).to_series().to_numpy()
        found.append(f"{100.0 * inside.mean():.0f} % in their 90 % interval")
    return found


def described(rows: pl.DataFrame) -> str:
    """Return median, 90th percentile, bias and worst row of relative errors.

    >>> described(pl.DataFrame({"predicted": [0.9, 1.04], "measured": [1.0, 1.0]}))
    'median 7.0, p90 9.4, bias -3.0, worst -10'
    """
    errors = rows.select(error("predicted")).to_series().to_numpy()
    size = np.abs(errors)
    worst = int(size.argmax())
    label = f" ({rows['label'][worst]})" if "label" in rows.columns else ""
    return (
        f"median {np.median(size):.1f}, p90 {np.quantile(size, 0.9):.1f}, "
        f"bias {errors.mean():+.1f}, worst {errors[worst]:+.0f}{label}"
    )


DAYS_OF_A_MONTH = 30.44
LENGTHS = ((0, "0 to 1"), (2, "2 to 3"), (4, "4 to 5"), (6, "6 and more"))
"""First months of the groups of a table, and their names."""


def months_between(day: str, later: str) -> int:
    """Return the whole months between two days.

    >>> months_between("2025-11-01", "2026-04-17")
    5
    """
    days = (date.fromisoformat(later[:10]) - date.fromisoformat(day)).days
    return int(days / DAYS_OF_A_MONTH)


def group_of(months: int) -> str:
    """Return the name of a group of months.

    >>> group_of(5)
    '4 to 5'
    """
    return next(name for first, name in reversed(LENGTHS) if months >= first)
