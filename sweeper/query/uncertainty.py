"""The probability that a design is on the front, or meets a deadline, given errors of prediction.

Each objective of each design is drawn from a lognormal whose 90 % interval is its band. The part of
the error that all designs share (one calibration behind them all) moves them together and changes
no order; only the part of their own does. Teich, "Pareto-front exploration with uncertain
objectives" (2001), for the probability of dominance.
"""

from __future__ import annotations

import math
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
"""Standard deviations from the middle of a normal distribution to the edge of its 90 % interval."""
LAYERS = 3
"""Number of successive fronts whose designs are drawn; others are never on the front."""


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
    """Return the designs of the first three fronts with `p_front`, the likeliest first.

    `behind` counts the fronts before a design's own, so it is 0 on the front.

    Args:
        results: rows of metrics.
        objectives: column to `min` or `max`; above zero.
        bands: half the width of the 90 % prediction interval of an objective, as a share of its
            value; objectives without one are exact. Columns `X_lo` and `X_hi` of the results take
            precedence.
        where: an SQL condition rows must meet.
        shared: the share of each objective's variance that all designs have in common, 0 to 1.
        draws: how often all designs are drawn.
        seed: of the draws.
        limit: candidates drawn at most; the best layers are kept first.

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
            raise UserError(f"band of '{name}': {band} is no share of its value, as in 0.2")
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
    """Return the objectives and numbers of all rows of the first layers, and of some others.

    The layer of a row in a piece of the results is at most its layer in the whole.
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
    """Return the probability that a metric of a design stays within a limit.

    And whether it is based on the row's own interval, of the metric `interval`, whose relative
    width also applies to percentiles of that metric. Otherwise it is based on `band`, half the
    relative width of the 90 % interval.
    """
    low, high = row.get(f"{interval}_lo"), row.get(f"{interval}_hi")
    if not row[metric]:
        return 1.0, bool(low and high)
    limit /= row[metric]
    if low and high:
        return probability_below(limit, low / row[interval], high / row[interval]), True
    return probability_below(limit, 1.0 / (1.0 + band), 1.0 + band), False


def _sigma(table: pl.DataFrame, name: str, band: float) -> Matrix:
    """Return the standard deviation of the logarithm of an objective, row by row.

    From its interval where the row states one, else from the band.
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
    """Return the probability of being below a limit; it and both ends are shares of the prediction.

    The prediction is the median, also of an interval that does not contain it. Errors have heavier
    tails than a normal distribution: their logarithms are double exponential (Laplace, 1774), with
    a scale on either side. The upper end of the 90 % interval is exceeded with probability 0.05,
    its square with 0.005.

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
