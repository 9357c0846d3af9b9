"""Evaluates claims: one line for every group of predicted and measured rows.

Lines are yielded as they are computed. A claim that raises is a failed line and does not stop the
others; a claim whose measured table is absent says so and neither passes nor fails.

Statistics are functions of the column of predictions, so that the same statistic applies to our
predictions, another tool's and a naive baseline. Relative errors are in percent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.claim import FOLDER, Claim, load_claims, load_function
from simulators.core.checks import Check
from simulators.core.errors import UserError

TEST, ALL = "test", "all"
"""Rows that no fit has seen, and all rows."""

LARGE_CHANGE = 0.02
"""Smallest relative change of a measured ratio whose direction is judged."""


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


def run(group: str, reference: Path, rows: str = TEST, *, details: bool = False) -> Iterator[Check]:
    """Yield the lines of a group of claims as they are computed.

    Args:
        group: the name of a claims file, such as "kernels".
        reference: the folder of measured tables.
        rows: `test` for rows that no fit has seen, `all` for every row.
        details: whether to yield the lines of single GPUs, models and submissions, too.

    Raises:
        UnknownNameError: there is no such group.
    """
    file = FOLDER.find(group)
    content = load_claims(file)
    frames = functools.cache(functools.partial(_predictions, file, content.inputs, reference, rows))
    for claim in content.claims:
        if details or not claim.is_detail:
            yield from _guarded(claim, frames)


def _predictions(
    file: Path, inputs: Mapping[str, Mapping[str, Any]], reference: Path, rows: str, named: str
) -> pl.DataFrame | Exception:
    """Return the frame of a predictor, or the exception it raised, shared by all its claims."""
    try:
        frame = load_function(file, named)(reference, **inputs.get(named, {}))
    except Exception as error:  # noqa: BLE001 - reported as a failed line
        return error
    return frame.filter("held_out") if "held_out" in frame.columns and rows == TEST else frame


def _guarded(claim: Claim, frames: Frames) -> Iterator[Check]:
    """Yield the lines of a claim; an exception becomes a line."""
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
        yield Check(claim.name, None, claim.unit, ok=ok, note=note, kind=claim.line_kind)


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
    kind = claim.line_kind
    if rows.is_empty():
        return Check(name, None, claim.unit, note=f"no rows{skipped}", kind=kind)
    value = _value(claim, rows, claim.column)
    least, most = (_limit(claim, rows, key, limit) for limit in (claim.at_least, claim.at_most))
    ok = None
    if value is not None and (least, most) != (None, None):
        ok = (least is None or value >= least) and (most is None or value <= most)
    count = rows["row"].n_unique() if "row" in rows.columns else rows.height
    limit = most if least is None else least
    peer = _value(claim, rows, "peer")
    note = _note(claim, rows) + skipped
    return Check(name, value, claim.unit, limit, ok, count, note, kind, peer)


def _limit(
    claim: Claim, rows: pl.DataFrame, key: str, limit: float | dict[str, float] | str | None
) -> float | None:
    """Return a limit: a number, the group's number, or the statistic of another column."""
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
    elif claim.statistic in ERRORS and rows.height > 1:
        parts.append(described(rows))
    elif rows.height == 1 and "label" in rows.columns:
        parts.append(str(rows["label"][0]))
    if (baseline := _value(claim, rows, "baseline")) is not None:
        parts.append(f"baseline {baseline:.1f}")
    return "; ".join(part for part in parts if part)


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
