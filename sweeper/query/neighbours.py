"""Neighbours of a design: designs at a distance of a step along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from sweeper.query.pareto import alike, minimised, qualifying
from sweeper.space.design_space import Objectives


def steps_from(
    results: pl.LazyFrame,
    design: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    objectives: Objectives,
) -> pl.DataFrame:
    """Return the evaluated neighbours of a design, and the changes of metrics.

    One row per neighbour: `axis`, `from`, `to` (as text), `better` (no objective worse, one
    better), and per objective the new value and, as `NAME_change`, its relative change. Steps that
    are better come first, then those with the largest gain in the first objective.
    `axes` go from axis to its values in order; of an axis of names every other value is one step
    away. An axis that is an objective, such as a capacity, is an outcome and no step.

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
        tables.append((axis, near.select(axis, *objectives)))
    found = [
        frame.select(
            axis=pl.lit(axis),
            **{"from": pl.lit(str(design[axis])), "to": pl.col(axis).cast(pl.String)},
            **{name: pl.col(name).cast(pl.Float64) for name in objectives},
        )
        for (axis, _), frame in zip(tables, pl.collect_all([t for _, t in tables]), strict=True)
    ]
    steps = pl.concat(found)
    here = minimised(pl.DataFrame({n: [float(design[n])] for n in objectives}), objectives)
    there = minimised(steps, objectives)
    better = (there <= here).all(axis=1) & (there < here).any(axis=1)
    gain = (here[:, 0] - there[:, 0]) / max(abs(here[0, 0]), 1e-300)
    return (
        steps.with_columns(
            *(
                ((pl.col(n) - float(design[n])) / abs(float(design[n]) or 1.0)).alias(f"{n}_change")
                for n in objectives
            ),
            better=pl.Series(better),
            __gain=pl.Series(np.nan_to_num(gain, nan=-np.inf)),
        )
        .sort("better", "__gain", descending=True, maintain_order=True)
        .select("axis", "from", "to", "better", *objectives, *(f"{n}_change" for n in objectives))
    )


def _near(axis: str, values: list[Any], value: Any) -> pl.Expr:
    """Return the condition that an axis is one step away from a value."""
    if any(isinstance(v, str) or v is None for v in values):
        near = [v for v in values if v != value]
    else:
        ordered = sorted(set(values))
        place = ordered.index(value)
        near = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
    named = [v for v in near if v is not None]
    condition = pl.col(axis).is_in(named)
    return condition | pl.col(axis).is_null() if None in near else condition
