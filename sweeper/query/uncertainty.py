"""The probability that a design is on the front, or meets a deadline, given prediction errors.

Each objective of each design is drawn from a lognormal distribution with the 90 % prediction
interval of the objective. The part of the error that all designs share, from a common calibration,
does not change their order, so only the remaining part is drawn. Teich, "Pareto-front exploration
with uncertain objectives" (2001), for the probability of dominance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix, distinct_front, rank_layers
from sweeper.query.pareto import objective_pieces, rows_at
from sweeper.space.design_space import Objectives
from sweeper.space.sql import check_columns

Z90 = 1.6448536269514722
"""Half-width of the 90 % interval of a normal distribution, in standard deviations."""
LAYERS = 3
"""Number of successive fronts whose designs are drawn; other designs are ignored."""


def probable_front(
    results: pl.LazyFrame,
    objectives: Objectives,
    bands: Mapping[str, float],
    *,
    where: str | None = None,
    shared: float = 0.0,
    draws: int = 200,
    seed: int = 0,
    limit: int = 20_000,
) -> pl.DataFrame:
    """Return the designs of the first three fronts with `p_front`, the most likely design first.

    `p_front` is the probability of being on the front; `behind` is the number of better fronts.

    Args:
        results: rows of metrics.
        objectives: column to `min` or `max`; all values must be above zero.
        bands: half-width of the 90 % prediction interval per objective, relative to the value;
            0 if missing. Columns `X_lo` and `X_hi` of the results take precedence.
        where: an SQL condition on rows.
        shared: the share of the error variance that all designs have in common, 0 to 1.
        draws: number of Monte Carlo draws.
        seed: seed of the draws.
        limit: largest number of drawn designs; better fronts come first.

    >>> rows = pl.LazyFrame({"cost": [1.0, 1.01, 9.0], "loss": [1.0, 1.01, 9.0]})
    >>> front = probable_front(rows, {"cost": "min", "loss": "min"}, {"cost": 0.1, "loss": 0.1})
    >>> [p > 0.1 for p in front["p_front"]]
    [True, True, False]
    """
    names = results.collect_schema().names()
    check_columns(list(objectives), names, "objective")
    check_columns(list(bands), list(objectives), "band")
    for name, band in bands.items():
        if not 0 <= band < 10:
            raise UserError(
                f"band of '{name}': {band} is not a relative half-width; write 0.2, for example"
            )
    if not 0 <= shared <= 1:
        raise UserError(f"shared={shared}: write a share between 0 and 1")
    values, numbers = _first_layers(results, objectives, where)
    ranks = rank_layers(values, LAYERS)
    order = np.argsort(ranks, kind="stable")
    candidates = order[ranks[order] > 0][:limit]
    values, ranks = values[candidates], ranks[candidates]
    drawn_from = pl.DataFrame({"__row": numbers[candidates].astype(np.uint32)})
    kept = rows_at(results, drawn_from["__row"])
    designs = drawn_from.join(kept, on="__row", how="left", maintain_order="left").drop("__row")
    spread = np.column_stack([_sigma(designs, n, bands.get(n, 0.0)) for n in objectives])
    generator = np.random.default_rng(seed)
    own = spread * np.sqrt(1.0 - shared)
    hits = np.zeros(len(candidates))
    for _ in range(draws):
        drawn = values * np.exp(own * generator.standard_normal(own.shape))
        hits[distinct_front(drawn)[0]] += 1
    likely = designs.with_columns(p_front=pl.Series(hits / draws), behind=pl.Series(ranks - 1))
    return likely.sort("p_front", descending=True, maintain_order=True)


def _first_layers(
    results: pl.LazyFrame, objectives: Objectives, where: str | None
) -> tuple[Matrix, Ints]:
    """Return the objectives and numbers of the rows that may be in the first layers.

    The layer of a row within a piece of the results is at most the layer among all rows.
    """
    found = []
    for values, numbers in objective_pieces(results, objectives, where=where):
        near = rank_layers(values, LAYERS) > 0
        found.append((values[near], numbers[near]))
    values, numbers = map(np.concatenate, zip(*found, strict=True))
    return values, numbers


def probability_within(
    row: Mapping[str, Any], metric: str, limit: float, *, interval: str, band: float
) -> tuple[float, bool]:
    """Return the probability that a metric stays within a limit, and whether the row states it.

    The row may state a 90 % prediction interval of the metric `interval`; the relative width also
    applies to percentiles of this metric. Otherwise, `band` is the relative half-width.
    """
    low, high = row.get(f"{interval}_lo"), row.get(f"{interval}_hi")
    if not row[metric]:
        return 1.0, bool(low and high)
    limit /= row[metric]
    if low and high:
        return probability_below(limit, low / row[interval], high / row[interval]), True
    return probability_below(limit, 1.0 / (1.0 + band), 1.0 + band), False


def half_width(row: Mapping[str, Any], metric: str, band: float) -> float:
    """Return the half-width of the 90 % interval of ln(metric); from `band` where not stated.

    >>> round(half_width({"s": 2.0, "s_lo": 1.0, "s_hi": 4.0}, "s", 0.2), 4)
    0.6931
    """
    low, high = row.get(f"{metric}_lo"), row.get(f"{metric}_hi")
    return math.log(high / low) / 2.0 if low and high else math.log1p(band)


def probability_smaller(ratio: float, widths: tuple[float, float], share: float) -> float:
    """Return the probability that the true value of b is below that of a.

    Args:
        ratio: the predicted b / a.
        widths: half-widths of the 90 % intervals of ln(a) and ln(b).
        share: half-width of the interval of ln(b / a) over the root of their summed squares:
            1 with independent errors, less with errors in common.

    >>> round(probability_smaller(1.0, (0.3, 0.4), 0.8), 3), probability_smaller(1.0, (0, 0), 1.0)
    (0.5, 0.5)
    >>> round(probability_smaller(math.exp(0.25), (0.15, 0.2), 1.0), 3)
    0.05
    """
    width = math.exp(share * math.hypot(*widths))
    if width == 1.0 and math.isclose(ratio, 1.0, rel_tol=1e-9):
        return 0.5  # a tie of certain values
    return probability_below(1.0 / ratio, 1.0 / width, width)


def correlation(widths: tuple[float, float], share: float) -> float:
    """Return the correlation of two errors whose difference has a `share` of the summed widths.

    >>> correlation((0.2, 0.2), 1.0), round(correlation((0.2, 0.2), 0.6), 2)
    (0.0, 0.64)
    """
    product = 2.0 * math.prod(widths)
    if not product:
        return 0.0
    return min(max((1.0 - share**2) * (widths[0] ** 2 + widths[1] ** 2) / product, 0.0), 0.999)


def probability_first_fails(first: float, second: float, correlated: float) -> float:
    """Return the probability that the first of two designs fails and the second does not.

    Args:
        first: probability that the first meets its requirement.
        second: probability that the second does.
        correlated: correlation of their errors (Gaussian copula; Li, "On default correlation",
            2000).

    >>> [round(probability_first_fails(0.8, 0.9, alike), 3) for alike in (0.0, 0.999)]
    [0.18, 0.1]
    """
    normal = statistics.NormalDist()
    ends = [min(max(p, 1e-9), 1.0 - 1e-9) for p in (first, second)]
    fails, meets = (normal.inv_cdf(p) for p in ends)
    steps, rest = 400, math.sqrt(1.0 - correlated**2)
    total = 0.0
    for i in range(steps):  # errors of the first above its limit, at equal probabilities
        error = normal.inv_cdf(ends[0] + (1.0 - ends[0]) * (i + 0.5) / steps)
        total += normal.cdf((meets - correlated * error) / rest)
    assert fails <= error
    return round(total / steps * (1.0 - ends[0]), 9)


def _sigma(table: pl.DataFrame, name: str, band: float) -> Matrix:
    """Return the standard deviation of the logarithm of an objective in each row.

    Rows with a stated interval use the interval, other rows use the band.
    """
    assumed = np.full(len(table), np.log1p(band) / Z90)
    if f"{name}_lo" not in table.columns:
        return assumed
    low, high = (
        table[f"{name}_{end}"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for end in ("lo", "hi")
    )
    with np.errstate(all="ignore"):
        stated: Matrix = np.log(high / low) / (2 * Z90)
    return np.where(np.isfinite(stated), stated, assumed)


def probability_below(limit: float, low: float, high: float) -> float:
    """Return the probability of being below a limit, given a 90 % prediction interval.

    `limit`, `low` and `high` are relative to the prediction, which is the median even if the
    interval does not contain 1. Errors have heavier tails than a normal distribution: their
    logarithms follow a Laplace distribution (Laplace, 1774) with one scale per side. The upper end
    is exceeded with probability 0.05, and the square of the upper end with probability 0.005.

    >>> [round(probability_below(limit, 0.5, 2.0), 3) for limit in (0.5, 1.0, 2.0, 4.0)]
    [0.05, 0.5, 0.95, 0.995]
    >>> probability_below(0.9, 1.0, 1.0), probability_below(1.0, 1.0, 1.0)
    (0.0, 1.0)
    >>> probability_below(1.1, 0.5, 0.9), probability_below(0.9, 1.1, 2.0)
    (1.0, 0.0)
    """
    margin = math.log(limit)
    width = math.log(max(high, 1.0)) if margin >= 0.0 else math.log(min(low, 1.0))
    if not width:
        return float(margin >= 0.0)
    beyond: float = 0.5 * 10.0 ** (-margin / width)
    return 1.0 - beyond if margin >= 0.0 else beyond
