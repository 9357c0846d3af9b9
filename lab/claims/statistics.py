"""Statistics of predicted and measured rows, as polars expressions.

Every statistic is a function of the column that holds the predictions, so that the same one applies
to ours, to another tool's and to a naive baseline. Relative errors are in percent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

Statistic = Callable[[str], pl.Expr]

LARGE_CHANGE = 0.02
"""Relative change of a measured ratio from which on its direction is judged."""


def error(column: str) -> pl.Expr:
    """Return signed relative errors in percent."""
    return 100.0 * (pl.col(column) / pl.col("measured") - 1.0)


def _size(column: str) -> pl.Expr:
    return error(column).abs()


def _wrong_sign(column: str) -> pl.Expr:
    """Share of measured changes whose predicted direction is wrong."""
    predicted, measured = pl.col(column) - 1.0, pl.col("measured") - 1.0
    wrong = predicted * measured <= 0.0
    return 100.0 * wrong.filter(measured.abs() > LARGE_CHANGE).mean()


def _inside(_column: str) -> pl.Expr:
    return 100.0 * pl.col("measured").is_between("lo", "hi").mean()


STATISTICS: dict[str, Statistic] = {
    "mean": lambda column: _size(column).mean(),
    "median": lambda column: _size(column).median(),
    "p90": lambda column: _size(column).quantile(0.9, "linear"),
    "worst": lambda column: _size(column).max(),
    "bias": lambda column: error(column).mean(),
    "within_2x": lambda column: (
        100.0 * (pl.col(column) / pl.col("measured")).log(2.0).abs().le(1.0).mean()
    ),
    "rank": lambda column: pl.corr(column, "measured", method="spearman"),
    "coverage": _inside,
    "wrong_sign": _wrong_sign,
    "mean_log": lambda column: (pl.col("measured") / pl.col(column)).log().abs().mean(),
    # Of rows without a measurement, `predicted` is the figure itself.
    "value": lambda column: pl.col(column).mean(),
    "median_value": lambda column: pl.col(column).median(),
    "largest": lambda column: pl.col(column).max(),
    "share": lambda column: 100.0 * pl.col(column).cast(pl.Float64).mean(),
    "count": lambda column: pl.col(column).cast(pl.Float64).sum(),
    "difference": lambda column: (pl.col(column) - pl.col("measured")).abs().mean(),
    "largest_difference": lambda column: (pl.col(column) - pl.col("measured")).abs().max(),
}
"""By the name that a claim gives; differences are in the unit of the rows."""

ERRORS = ("mean", "median", "p90", "worst")
"""Statistics that are described by median, bias and worst row."""


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
