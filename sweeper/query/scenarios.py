"""Scenarios and price lists: results per combination of given values, at current prices.

A scenario is one combination of values of the `given` axes, such as a model and a load, or one
price list. Costs follow from stored columns (`Reprices`), so a new price needs no simulation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from simulators.core.contract import Reprices, load_simulator
from simulators.core.errors import UserError, unknown
from simulators.core.fields import columns_of
from sweeper.query.pareto import qualifying
from sweeper.space.axes import Factor, axis_values
from sweeper.space.design_space import DesignSpace, Objectives, check_directions
from sweeper.space.sql import names_in

WORST, MEAN = "worst", "mean"
"""Aggregations of an objective over all scenarios."""


def scenarios_of(
    results: pl.LazyFrame, given: Sequence[str], axes: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the scenarios with results, in the order of the axes' values.

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
    """Return one row per design that qualifies in every scenario.

    The columns are `chosen`, the worst or mean value of each objective over the scenarios, and the
    given axes, whose values name the scenario with the worst first objective. `status` is ok and
    `reason` is null.

    >>> rows = pl.LazyFrame({"qps": [1, 2, 1, 2], "tp": [1, 1, 2, 2], "s": [1.0, 9.0, 3.0, 4.0]})
    >>> across(rows, ["qps"], ["tp"], {"s": "min"}).select("tp", "s", "qps").collect().rows()
    [(1, 9.0, 2), (2, 4.0, 2)]

    Raises:
        UserError: `how` is neither `worst` nor `mean`.
    """
    if how not in (WORST, MEAN):
        raise unknown(
            f"scenarios are combined by worst or mean, not '{how}'",
            how,
            (WORST, MEAN),
        )
    check_directions(objectives)
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
        __scenarios=pl.struct(given).n_unique(),
    )
    return designs.filter(pl.col("__scenarios") == count).select(
        *given, *chosen, *objectives, status=pl.lit("ok"), reason=pl.lit(None, pl.String)
    )


def unpriced(space: DesignSpace) -> DesignSpace:
    """Return the space to simulate: price fields have their defaults.

    Raises:
        UserError: a constraint or a derived column uses a price field.
    """
    fields = _price_fields(space)
    for text in (*space.constraints, *space.derived.values()) if fields else ():
        if named := set(names_in(text, f"'{text}'")) & set(fields):
            raise UserError(
                f"'{text}' names '{named.pop()}': prices apply to results; write it in `where`"
            )
    usual = {c.name: c.default for c in columns_of(load_simulator(space.simulator).point)}
    return _with(space, {name: (usual[name],) for name in fields})


def priced(space: DesignSpace, axes: Mapping[str, Any]) -> DesignSpace:
    """Return a space with the written values of price fields."""
    simulator, fields = load_simulator(space.simulator), _price_fields(space)
    return _with(space, {n: axis_values(n, axes[n], simulator) for n in fields if n in axes})


def repriced(results: pl.LazyFrame, space: DesignSpace) -> pl.LazyFrame:
    """Return the results once per price list of the space, with costs at current prices.

    Stored costs use the prices of the day of the simulation, so they are computed again.
    """
    simulator = load_simulator(space.simulator)
    factors = _price_factors(space)
    if not isinstance(simulator, Reprices) or not factors:
        return results
    known = set(results.collect_schema().names())
    if not {*simulator.cost_needs, *simulator.cost_metrics} <= known:
        return results
    names = [name for factor in factors for name in factor.columns]
    tables = []
    for row in itertools.product(*(zip(*f.columns.values(), strict=True) for f in factors)):
        prices = dict(zip(names, itertools.chain(*row), strict=True))
        tables.append(_in(results, simulator, prices))
    return pl.concat(tables) if len(tables) > 1 else tables[0]


def _in(results: pl.LazyFrame, simulator: Reprices, prices: Mapping[str, Any]) -> pl.LazyFrame:
    schema = results.collect_schema()

    def cost(metric: str) -> pl.Expr:
        def computed(columns: pl.Series) -> pl.Series:
            rows = pa.RecordBatch.from_pydict(
                {name: columns.struct.field(name).to_arrow() for name in simulator.cost_needs}
            )
            return pl.Series(metric, simulator.costs(rows, prices)[metric]).fill_nan(None)

        needed = pl.struct(simulator.cost_needs)
        return needed.map_batches(computed, return_dtype=pl.Float64, is_elementwise=True)

    return results.with_columns(
        *(pl.lit(value, schema[name]).alias(name) for name, value in prices.items()),
        *(cost(metric).alias(metric) for metric in simulator.cost_metrics),
    )


def _price_fields(space: DesignSpace) -> Sequence[str]:
    simulator = load_simulator(space.simulator)
    return simulator.priced if isinstance(simulator, Reprices) else ()


def _price_factors(space: DesignSpace) -> list[Factor]:
    fields = set(_price_fields(space))
    return [factor for factor in space.factors if set(factor.columns) <= fields]


def _with(space: DesignSpace, prices: Mapping[str, tuple[Any, ...]]) -> DesignSpace:
    """Return a space with other values of the price fields that are separate axes."""
    if not prices:
        return space
    factors = []
    for factor in space.factors:
        name, *others = factor.columns
        is_new = name in prices and not others
        factors.append(Factor({name: prices[name]}) if is_new else factor)
    return dataclasses.replace(space, factors=tuple(factors))
