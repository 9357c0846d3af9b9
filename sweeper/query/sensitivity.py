"""Sensitivity of a metric to the axes: the share of its variance that each explains alone.

On a full grid the mean of the metric at each value of an axis is its main effect, and the variance
of the main effect over the variance of the metric is the axis's first-order Sobol index, exactly
(Sobol', "Sensitivity estimates for nonlinear mathematical models", 1993). On a sample, or where
constraints leave holes, the values are weighed by their rows and the share that chance alone would
explain is taken off (Hays' omega squared). What the indices leave of 1 is interaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from simulators.core.errors import UserError
from sweeper.query.pareto import qualifying
from sweeper.space.sql import check_columns

_BINS = 32
"""Values of a sampled axis beyond which neighbours are taken together."""
_ROUNDING = 1e-12
"""Shares of the variance below which means differ by how sums are rounded."""


@dataclass(frozen=True)
class Sensitivity:
    """What the axes explain of one metric.

    `indices` has the columns `axis`, `first_order` (0 to 1), `values` (how many it takes) and
    `span` (highest over lowest main effect), the most important axis first.
    """

    metric: str
    rows: int
    indices: pl.DataFrame
    effects: pl.DataFrame  # axis, value (as text), mean, rows
    interaction: float  # what no axis explains alone


def sensitivity(
    results: pl.LazyFrame, metric: str, axes: Sequence[str], *, where: str | None = None
) -> Sensitivity:
    """Return main effects and first-order Sobol indices of the axes on a metric, itself left out.

    >>> rows = pl.LazyFrame({"a": [0, 0, 1, 1], "b": [0, 1, 0, 1], "y": [0.0, 1.0, 3.0, 4.0]})
    >>> sensitivity(rows, "y", ["b", "a"]).indices.rows()
    [('a', 0.9, 2, 7.0), ('b', 0.1, 2, 1.6666666666666667)]
    """
    names = results.collect_schema().names()
    check_columns([metric], names, "metric")
    check_columns(axes, names, "axis")
    y = pl.col(metric).cast(pl.Float64)
    good = qualifying(results, where=where).filter(y.is_finite()).with_columns(y)
    rows, mean, variance = good.select(pl.len(), y.mean(), v=y.var(ddof=0)).collect().row(0)
    if rows < 2:
        raise UserError(f"sensitivity of '{metric}' needs at least two feasible designs")
    indices, effects = [], []
    for axis in (name for name in axes if name != metric):
        by_value, whole = _main_effect(good, metric, axis)
        share = _explained(by_value, mean, variance, rows, whole=whole)
        low, high = by_value.select(pl.col("mean").min(), high=pl.col("mean").max()).row(0)
        indices.append((axis, share, len(by_value), high / low if low > 0 else None))
        effects.append(
            by_value.select(
                axis=pl.lit(axis), value=pl.col(axis).cast(pl.String), mean="mean", rows="rows"
            )
        )
    kinds = {"axis": pl.String, "first_order": pl.Float64, "values": pl.Int64, "span": pl.Float64}
    ranked = pl.DataFrame(indices, schema=kinds, orient="row").sort(
        "first_order", descending=True, maintain_order=True
    )
    return Sensitivity(
        metric, rows, ranked, pl.concat(effects), max(0.0, 1.0 - float(ranked["first_order"].sum()))
    )


def idle_axes(results: pl.LazyFrame, metrics: Sequence[str], axes: Sequence[str]) -> list[str]:
    """Return the axes that change none of the metrics: designs equal but for them measure equal.

    >>> rows = pl.LazyFrame({"a": [0, 0, 1, 1], "b": [0, 1, 0, 1], "y": [3, 3, 4, 4]})
    >>> idle_axes(rows, ["y"], ["a", "b"])
    ['b']
    """
    good = qualifying(results).select(*axes, *metrics).collect()
    found: list[str] = []
    for axis in axes:
        others = [a for a in axes if a != axis]
        if not others or good[axis].n_unique() < 2:
            continue
        spread = good.group_by(others).agg(
            pl.col(axis).n_unique().alias("__met"), *(pl.col(m).n_unique() for m in metrics)
        )
        met = spread.filter(pl.col("__met") > 1)
        if (
            len(met)
            and met.select(pl.all_horizontal(pl.col(m) == 1 for m in metrics)).to_series().all()
        ):
            found.append(axis)
    return found


def _main_effect(good: pl.LazyFrame, metric: str, axis: str) -> tuple[pl.DataFrame, bool]:
    """Return mean and rows by value of an axis, and whether each was met equally often.

    A sampled axis is cut at its quantiles.
    """
    found = _by_value(good.select(axis, metric), metric, axis)
    if len(found) <= _BINS or not found[axis].dtype.is_numeric():
        return found, found["rows"].n_unique() == 1
    bins = good.select(axis, metric, __bin=pl.col(axis).qcut(_BINS, allow_duplicates=True))
    means = bins.group_by("__bin").agg(
        pl.col(axis).median(), mean=pl.col(metric).mean(), rows=pl.len()
    )
    return means.sort(axis).drop("__bin").collect(), False


def _by_value(good: pl.LazyFrame, metric: str, axis: str) -> pl.DataFrame:
    by_value = good.group_by(axis).agg(mean=pl.col(metric).mean(), rows=pl.len())
    return by_value.sort(axis).collect(engine="streaming")


def _explained(
    by_value: pl.DataFrame, mean: float, variance: float, rows: int, *, whole: bool
) -> float:
    """Return the share of the variance that lies between the values of an axis."""
    values = len(by_value)
    if variance <= 0 or values < 2:
        return 0.0
    weights, means = by_value["rows"].to_numpy(), by_value["mean"].to_numpy()
    between = float((weights * (means - mean) ** 2).sum())
    total = variance * rows
    if whole or rows <= values:  # on a full grid nothing is by chance
        return min(1.0, between / total) if between > _ROUNDING * total else 0.0
    noise = (total - between) / (rows - values)
    return min(1.0, max(0.0, (between - (values - 1) * noise) / (total + noise)))
