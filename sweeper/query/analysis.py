"""Analyses of results: sensitivity to axes, neighbours of a design, cheapest designs, replicas.

On a full grid, the variance of an axis's main effect (the mean of the metric at each value) over
the variance of the metric is the first-order Sobol index (Sobol', "Sensitivity estimates for
nonlinear mathematical models", 1993). On samples and on grids with constraints, values are weighted
by their rows and the share expected by chance is subtracted (Hays' omega squared).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from sweeper.query.pareto import alike, batches, minimised, pareto_front, qualifying
from sweeper.space.design_space import Objectives
from sweeper.space.sql import check_columns

_BINS = 32
"""Most values of a sampled axis; axes with more values are binned at quantiles."""
_ROUNDING = 1e-12
"""Share of the variance that rounding of sums can cause."""


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of one metric to the axes.

    `indices` has the columns `axis`, `first_order` (0 to 1), `values` (number of values) and `span`
    (highest over lowest main effect), the most important axis first.
    """

    metric: str
    rows: int
    indices: pl.DataFrame
    effects: pl.DataFrame  # axis, value (as text), mean, rows
    interaction: float  # share of the variance that no axis explains alone


def sensitivity(
    results: pl.LazyFrame, metric: str, axes: Sequence[str], *, where: str | None = None
) -> Sensitivity:
    """Return main effects and first-order Sobol indices of the axes on a metric.

    >>> rows = pl.LazyFrame({"a": [0, 0, 1, 1], "b": [0, 1, 0, 1], "y": [0.0, 1.0, 3.0, 4.0]})
    >>> sensitivity(rows, "y", ["b", "a"]).indices.rows()
    [('a', 0.9, 2, 7.0), ('b', 0.1, 2, 1.6666666666666667)]
    """
    [found] = sensitivities(results, [metric], axes, where=where)
    if found is None:
        raise UserError(f"sensitivity of '{metric}' needs at least two feasible designs")
    return found


def sensitivities(
    results: pl.LazyFrame,
    metrics: Sequence[str],
    axes: Sequence[str],
    *,
    where: str | None = None,
) -> list[Sensitivity | None]:
    """Return the sensitivity of each metric; None with fewer than two feasible designs.

    The rows are read once.
    """
    names = results.collect_schema().names()
    check_columns(metrics, names, "metric")
    check_columns(axes, names, "axis")
    moments, means = _main_effects(results, metrics, axes, where)
    found: list[Sensitivity | None] = []
    for place, (metric, known) in enumerate(zip(metrics, moments, strict=True)):
        y = pl.col(metric).cast(pl.Float64)
        good = qualifying(results, where=where).filter(y.is_finite()).with_columns(y)
        found.append(_sensitivity(good, metric, place, known, means) if known.rows > 1 else None)
    return found


def _sensitivity(
    good: pl.LazyFrame,
    metric: str,
    place: int,
    known: _Moments,
    means: Mapping[str, pl.DataFrame],
) -> Sensitivity:
    """Return the sensitivity of the metric at a place of the tables by value of an axis."""
    variance = known.squares / known.rows
    indices, effects = [], []
    for axis in (name for name in means if name != metric):
        by_value = (
            means[axis]
            .filter(pl.col(f"rows{place}") > 0)
            .select(axis, mean=pl.col(f"sum{place}") / pl.col(f"rows{place}"), rows=f"rows{place}")
        )
        is_balanced = by_value["rows"].n_unique() == 1
        if len(by_value) > _BINS and by_value[axis].dtype.is_numeric():
            by_value, is_balanced = _binned_effect(good, metric, axis), False
        share = _explained(by_value, known.mean, variance, known.rows, is_balanced=is_balanced)
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
    interaction = max(0.0, 1.0 - float(ranked["first_order"].sum()))
    return Sensitivity(metric, known.rows, ranked, pl.concat(effects), interaction)


def idle_axes(results: pl.LazyFrame, metrics: Sequence[str], axes: Sequence[str]) -> list[str]:
    """Return the axes without effect on the metrics, in designs with equal other axes.

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
            pl.col(axis).n_unique().alias("__values"), *(pl.col(m).n_unique() for m in metrics)
        )
        varied = spread.filter(pl.col("__values") > 1)
        is_constant = pl.all_horizontal(pl.col(m) == 1 for m in metrics)
        if len(varied) and varied.select(is_constant).to_series().all():
            found.append(axis)
    return found


@dataclass
class _Moments:
    """Rows, mean and sum of squared deviations of a metric, added up over pieces of the results.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979).
    """

    rows: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: Floats) -> None:
        """Add a piece."""
        if not len(values):
            return
        own, together = float(values.mean()), self.rows + len(values)
        step = own - self.mean
        self.squares += float(((values - own) ** 2).sum())
        self.squares += step**2 * self.rows * len(values) / together
        self.mean += step * len(values) / together
        self.rows = together


def _main_effects(
    results: pl.LazyFrame, metrics: Sequence[str], axes: Sequence[str], where: str | None
) -> tuple[list[_Moments], dict[str, pl.DataFrame]]:
    """Return the moments of metrics, and their sums and rows by value of each axis.

    The rows are read once, in pieces. The column `sum0` of an axis is the sum of the first metric.
    """
    finite = [pl.col(name).cast(pl.Float64) for name in metrics]
    finite = [pl.when(y.is_finite()).then(y).alias(f"__{i}") for i, y in enumerate(finite)]
    moments = [_Moments() for _ in metrics]
    sums: dict[str, list[pl.DataFrame]] = {axis: [] for axis in axes}
    each = range(len(metrics))
    added = [
        *(pl.col(f"__{i}").sum().alias(f"sum{i}") for i in each),
        *(pl.col(f"__{i}").count().alias(f"rows{i}") for i in each),
    ]
    for table in batches(qualifying(results, where=where).select(*axes, *finite)):
        for axis, found in sums.items():
            found.append(table.group_by(axis).agg(added))
        for i, known in enumerate(moments):
            known.add(table[f"__{i}"].drop_nulls().to_numpy())
    totals = [pl.col(f"{name}{i}").sum() for name in ("sum", "rows") for i in each]
    whole = {axis: pl.concat(found).group_by(axis).agg(totals) for axis, found in sums.items()}
    return moments, {axis: table.sort(axis) for axis, table in whole.items()}


def _binned_effect(good: pl.LazyFrame, metric: str, axis: str) -> pl.DataFrame:
    """Return mean and rows of an axis with many values, binned at quantiles."""
    bins = good.select(axis, metric, __bin=pl.col(axis).qcut(_BINS, allow_duplicates=True))
    means = bins.group_by("__bin").agg(
        pl.col(axis).median(), mean=pl.col(metric).mean(), rows=pl.len()
    )
    return means.sort(axis).drop("__bin").collect()


def _explained(
    by_value: pl.DataFrame, mean: float, variance: float, rows: int, *, is_balanced: bool
) -> float:
    values = len(by_value)
    if variance <= 0 or values < 2:
        return 0.0
    weights, means = by_value["rows"].to_numpy(), by_value["mean"].to_numpy()
    between = float((weights * (means - mean) ** 2).sum())
    total = variance * rows
    if is_balanced or rows <= values:  # a full grid has no sampling noise
        return min(1.0, between / total) if between > _ROUNDING * total else 0.0
    noise = (total - between) / (rows - values)
    return min(1.0, max(0.0, (between - (values - 1) * noise) / (total + noise)))


def steps_from(
    results: pl.LazyFrame,
    design: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    objectives: Objectives,
) -> pl.DataFrame:
    """Return the stored neighbours of a design: designs one step away along one axis.

    The columns are `axis`, `from` and `to` (as text), `dominates` (no objective worse, one better),
    and for each objective the value and, as `NAME_change`, the relative change. Dominating
    neighbours come first, then those with the largest gain in the first objective. `axes` map an
    axis to its ordered values; on an axis of names, all other values are one step away. An axis
    that is an objective, such as a capacity, is skipped.

    >>> rows = pl.LazyFrame({"tp": [1, 2, 4], "cost": [3.0, 2.0, 5.0]})
    >>> steps_from(rows, {"tp": 4, "cost": 5.0}, {"tp": [1, 2, 4]}, {"cost": "min"}).rows()
    [('tp', '4', '2', True, 2.0, -0.6)]
    """
    good = qualifying(results)
    axes = {n: values for n, values in axes.items() if n not in objectives}
    tables = []
    for axis, values in axes.items():
        others = [a for a in axes if a != axis]
        near = good.filter(alike(design, others) & _near(axis, list(values), design[axis]))
        step = near.select(
            axis=pl.lit(axis),
            **{"from": pl.lit(str(design[axis])), "to": pl.col(axis).cast(pl.String)},
            **{name: pl.col(name).cast(pl.Float64) for name in objectives},
        )
        tables.append(step)
    steps = pl.concat(pl.collect_all(tables))
    here = minimised(pl.DataFrame({n: [float(design[n])] for n in objectives}), objectives)
    there = minimised(steps, objectives)
    dominates = (there <= here).all(axis=1) & (there < here).any(axis=1)
    gain = (here[:, 0] - there[:, 0]) / max(abs(here[0, 0]), 1e-300)
    return (
        steps.with_columns(
            *(
                ((pl.col(n) - float(design[n])) / abs(float(design[n]) or 1.0)).alias(f"{n}_change")
                for n in objectives
            ),
            dominates=pl.Series(dominates),
            __gain=pl.Series(np.nan_to_num(gain, nan=-np.inf)),
        )
        .sort("dominates", "__gain", descending=True, maintain_order=True)
        .select(
            "axis", "from", "to", "dominates", *objectives, *(f"{n}_change" for n in objectives)
        )
    )


def _near(axis: str, values: list[Any], value: Any) -> pl.Expr:
    if any(isinstance(v, str) or v is None for v in values):
        near = [v for v in values if v != value]
    else:
        ordered = sorted(set(values))
        place = ordered.index(value)
        near = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
    named = [v for v in near if v is not None]
    condition = pl.col(axis).is_in(named)
    return condition | pl.col(axis).is_null() if None in near else condition


def cheapest(results: pl.LazyFrame, cost: str, slo: str, *, count: int = 1) -> pl.DataFrame:
    """Return the `count` cheapest designs that meet an SLO, the cheapest first.

    `slo` is an SQL condition. If no design meets the SLO, a `UserError` is raised.

    >>> rows = pl.LazyFrame({"usd": [3.0, 1.0, 2.0], "wait_s": [0.1, 9.0, 0.2]})
    >>> cheapest(rows, "usd", "wait_s < 1").rows()
    [(2.0, 0.2)]
    """
    check_columns([cost], results.collect_schema().names(), "cost")
    found = qualifying(results, where=slo).filter(pl.col(cost).is_not_null())
    best = found.bottom_k(count, by=cost).collect().sort(cost)
    if best.is_empty():
        raise UserError(f"no feasible design meets {slo}")
    return best


def best_per(
    results: pl.LazyFrame,
    level: str,
    objective: str,
    direction: Direction,
    *,
    where: str | None = None,
    steps: int | None = None,
) -> pl.DataFrame:
    """Return the best design at each level of a column, for example at each cost.

    Each value of the column is a level. With `steps`, the levels are so many logarithmic bins of
    the column, whose values must be above zero.

    >>> rows = pl.LazyFrame({"gpus": [8, 8, 16], "rate": [3.0, 5.0, 9.0]})
    >>> best_per(rows, "gpus", "rate", "max").rows()
    [(8, 5.0), (16, 9.0)]
    """
    check_columns([level, objective], results.collect_schema().names(), "column")
    key = pl.col(level)
    good = qualifying(results, where=where).filter(key.is_not_null())
    if steps is not None:
        low, high = good.select(key.min(), high=key.max()).collect().row(0)
        if low is None or low <= 0:
            raise UserError(f"'{level}' must be above zero for {steps} logarithmic levels")
        width = max(math.log(high / low) / steps, 1e-12)
        key = ((pl.col(level) / low).log() / width).floor().clip(0, steps - 1)
    best = pareto_front(good.with_columns(__level=key), {objective: direction}, per=["__level"])
    return best.sort(level).drop("__level", "equivalents")


@dataclass(frozen=True)
class Fleet:
    """The number of replicas per hour for a load that changes over the day."""

    replicas: tuple[int, ...]  # in each hour
    peak: int  # largest number of replicas
    utilization: float  # total load over total capacity of the running replicas


def replicas_for(load: Sequence[float], capacity: float, *, spare: int = 1) -> Fleet:
    """Return the number of replicas that serve a load, including spares for failures.

    Args:
        load: the load in each hour or other time step.
        capacity: the load that one replica serves within the SLO.
        spare: number of replicas that may fail at the same time.

    >>> replicas_for([1.0, 7.0, 12.0], capacity=4.0)
    Fleet(replicas=(2, 3, 4), peak=4, utilization=0.5555555555555556)
    """
    if not capacity > 0:
        raise UserError(f"a replica with a capacity of {capacity} serves no load")
    if not len(load) or min(load) < 0:
        raise UserError("the load must be a list of numbers of at least zero")
    needed = [max(1, math.ceil(x / capacity - 1e-9)) + spare for x in load]
    return Fleet(tuple(needed), max(needed), float(np.sum(load) / (capacity * np.sum(needed))))
