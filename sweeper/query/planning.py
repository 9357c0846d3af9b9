"""Capacity planning: the cheapest design that meets the SLO, and its number of replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper.query.pareto import qualifying
from sweeper.space.sql import check_columns


def cheapest(results: pl.LazyFrame, cost: str, slo: str, *, count: int = 1) -> pl.DataFrame:
    """Return the `count` designs of least cost, the cheapest first, that meet an objective.

    `slo` is that service-level objective as an SQL condition; that none meets it is a `UserError`.

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
    """Return the best design at each level of a column: iso-cost tables and the like.

    Each value of the column is a level; with `steps`, so many logarithmic ranges of a column above
    zero are.

    >>> rows = pl.LazyFrame({"gpus": [8, 8, 16], "rate": [3.0, 5.0, 9.0]})
    >>> best_per(rows, "gpus", "rate", "max").rows()
    [(8, 5.0), (16, 9.0)]
    """
    check_columns([level, objective], results.collect_schema().names(), "column")
    good = qualifying(results, where=where).filter(
        pl.col(level).is_not_null() & pl.col(objective).is_not_null()
    )
    key = pl.col(level)
    if steps is not None:
        low, high = good.select(key.min(), high=key.max()).collect().row(0)
        if low is None or low <= 0:
            raise UserError(f"'{level}' must be above zero to be cut into {steps} levels")
        width = max(math.log(high / low) / steps, 1e-12)
        key = ((pl.col(level) / low).log() / width).floor().clip(0, steps - 1)
    good = good.with_columns(__level=key)
    value = pl.col(objective)
    extreme = value.max() if direction == "max" else value.min()
    levels = good.group_by("__level").agg(extreme).collect(engine="streaming")
    best = good.join(levels.lazy(), on=["__level", objective], how="semi").collect()
    return best.unique("__level", keep="first", maintain_order=True).sort(level).drop("__level")


@dataclass(frozen=True)
class Fleet:
    """Replicas hour by hour, for a load that changes over the day."""

    replicas: tuple[int, ...]  # what each hour needs
    bought: int  # what must stand there if nothing is returned at night
    used: float  # the mean load over the capacity of what runs


def replicas_for(load: Sequence[float], capacity: float, *, spare: int = 1) -> Fleet:
    """Return how many whole replicas carry a load, with spares for failures.

    The load is given per hour, or any other step; the capacity is the load that one replica carries
    within its deadlines. `spare` replicas, which may fail at once, are added.

    >>> replicas_for([1.0, 7.0, 12.0], capacity=4.0)
    Fleet(replicas=(2, 3, 4), bought=4, used=0.5555555555555556)
    """
    if not capacity > 0:
        raise UserError(f"a replica with a capacity of {capacity} carries no load")
    if not len(load) or min(load) < 0:
        raise UserError("the load is a list of numbers, none below zero")
    needed = [max(1, math.ceil(x / capacity - 1e-9)) + spare for x in load]
    return Fleet(tuple(needed), max(needed), float(np.sum(load) / (capacity * np.sum(needed))))
