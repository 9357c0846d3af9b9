"""Costs in any price list, computed from rows that are there: no price asks for a new simulation.

A simulator says which of its fields are prices alone, and how its costs follow from other columns
(`Reprices`). A space is simulated at their defaults; its results are asked for in the price lists
that it names, each of which is a scenario.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from simulators.core.contract import Reprices, load_simulator
from simulators.core.errors import UserError
from simulators.core.fields import columns_of
from sweeper.space.axes import Factor, axis_values
from sweeper.space.design_space import DesignSpace
from sweeper.space.sql import names_in


def unpriced(space: DesignSpace) -> DesignSpace:
    """Return the space that is simulated: price fields at their defaults.

    Raises:
        UserError: a constraint or a derived column asks what something costs.
    """
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Reprices):
        return space
    for text in (*space.constraints, *space.derived.values()):
        if named := set(names_in(text, f"'{text}'")) & set(simulator.priced):
            raise UserError(
                f"'{text}' names '{named.pop()}': prices are known of results; write it in `where`"
            )
    usual = {c.name: c.default for c in columns_of(simulator.point)}
    return _with(space, {name: (usual[name],) for name in simulator.priced})


def priced(space: DesignSpace, axes: Mapping[str, Any]) -> DesignSpace:
    """Return a space with the price fields as they are written, each a value or several."""
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Reprices):
        return space
    asked = {n: axis_values(n, axes[n], simulator) for n in simulator.priced if n in axes}
    return _with(space, asked)


def repriced(results: pl.LazyFrame, space: DesignSpace) -> pl.LazyFrame:
    """Return results once for each combination of the space's prices, with the costs in each.

    The costs that rows were stored with are those of the day they were simulated; here the price
    lists count as they are now.
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
    """Return rows in one price list."""
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


def _price_factors(space: DesignSpace) -> list[Factor]:
    simulator = load_simulator(space.simulator)
    fields = set(simulator.priced) if isinstance(simulator, Reprices) else set()
    return [factor for factor in space.factors if set(factor.columns) <= fields]


def _with(space: DesignSpace, prices: Mapping[str, tuple[Any, ...]]) -> DesignSpace:
    """Return a space with other values of price fields that move on their own."""
    alone = {tuple(factor.columns) for factor in _price_factors(space)}
    factors = []
    for factor in space.factors:
        names = tuple(factor.columns)
        new = names in alone and len(names) == 1 and names[0] in prices
        factors.append(Factor({names[0]: prices[names[0]]}) if new else factor)
    return dataclasses.replace(space, factors=tuple(factors))
