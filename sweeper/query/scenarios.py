"""Scenarios: the models, loads and sizes that are given, and designs that must do for all of them.

A scenario is one combination of values of the given axes. Each has a front of its own; over all of
them at once a design counts with its worst, or its mean, and only if it does for every one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from simulators.core.errors import unknown
from sweeper.query.pareto import qualifying
from sweeper.space.design_space import Objectives

WORST, MEAN = "worst", "mean"
"""How a design's values over all scenarios become one."""


def scenarios_of(
    results: pl.LazyFrame, given: Sequence[str], axes: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the scenarios that results answer, in the order of the axes' values.

    >>> rows = pl.LazyFrame({"qps": [4, 4, 1], "tp": [1, 2, 1]})
    >>> scenarios_of(rows, ["qps"], {"qps": [1, 2, 4]})
    [{'qps': 1}, {'qps': 4}]
    """
    if not given:
        return [{}]
    places = {name: {v: i for i, v in enumerate(dict.fromkeys(axes[name]))} for name in given}
    found = results.select(given).unique().collect().to_dicts()
    return sorted(found, key=lambda s: [places[n].get(v, -1) for n, v in s.items()])


def across(
    results: pl.LazyFrame,
    given: Sequence[str],
    chosen: Sequence[str],
    objectives: Objectives,
    *,
    where: str | None = None,
    how: str = WORST,
) -> pl.LazyFrame:
    """Return one row for each design that qualifies in every scenario: `chosen` and objectives.

    Each objective is its worst over the scenarios, or their mean. The given axes say in which of
    them the first objective is worst; `status` is ok, and there is no `reason`.

    >>> rows = pl.LazyFrame({"qps": [1, 2, 1, 2], "tp": [1, 1, 2, 2], "s": [1.0, 9.0, 3.0, 4.0]})
    >>> across(rows, ["qps"], ["tp"], {"s": "min"}).select("tp", "s", "qps").collect().rows()
    [(1, 9.0, 2), (2, 4.0, 2)]

    Raises:
        UnknownNameError: `how` is none of the ways.
    """
    if how not in (WORST, MEAN):
        raise unknown(
            f"across scenarios a design counts by its worst or mean, not '{how}'",
            how,
            (WORST, MEAN),
        )
    count = results.select(given).unique().select(pl.len()).collect().item()
    first, direction = next(iter(objectives.items()))
    values = [pl.col(name).cast(pl.Float64) for name in objectives]
    worst = [
        v.min() if d == "max" else v.max() for v, d in zip(values, objectives.values(), strict=True)
    ]
    decisive = pl.col(first).arg_min() if direction == "max" else pl.col(first).arg_max()
    good = qualifying(results, where=where).filter(pl.all_horizontal(v.is_finite() for v in values))
    designs = good.group_by(chosen, maintain_order=True).agg(
        *(worst if how == WORST else [v.mean() for v in values]),
        *(pl.col(name).get(decisive) for name in given),
        __met=pl.struct(given).n_unique(),
    )
    return designs.filter(pl.col("__met") == count).select(
        *given, *chosen, *objectives, status=pl.lit("ok"), reason=pl.lit(None, pl.String)
    )
