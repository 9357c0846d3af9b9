"""Bisection for the largest value of one axis that meets a condition, for every other combination.

What meets a service-level objective at some load meets it at a lower one, up to noise, so the
limit is bisected over a ladder of values 2.5 % apart. Each round probes every open combination.
Probes are ordinary points in the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.questions import CarriesLoad
from sweeper.samplers import Results
from sweeper.samplers._search_driver import answers_at, at_first_value, single_axis
from sweeper.samplers.random import allowed, in_blocks
from sweeper.space.axes import is_capacity
from sweeper.space.design_space import DesignSpace, checked
from sweeper.space.points import Batch, Index, Mask
from sweeper.space.space_file import SpaceConfig
from sweeper.space.sql import names_in, parsed, shown


@dataclass(frozen=True)
class Capacity:
    """Bisects one axis of a space."""

    axis: str  # ascending values, such as a load
    slo: str  # an SQL condition over results, true where it is met

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield one round of probes per halving."""
        base, step = at_first_value(space, self.axis)
        base = allowed(space, base)
        passes = np.full(len(base), -1)
        fails = np.full(len(base), len(space.axes[self.axis]))
        while (still := np.flatnonzero(fails - passes > 1)).size:
            middle = (passes[still] + fails[still]) // 2
            probes = base[still] + middle * step
            yield in_blocks(probes)
            met, feasible = self._verdicts(space, results(), probes)
            passes[still[met]] = middle[met]
            fails[still[~met]] = middle[~met]
            # A design that is infeasible at one load is infeasible at every load.
            fails[still[~feasible]] = passes[still[~feasible]] + 1

    def size(self, space: DesignSpace) -> int:
        """Return the most probes there can be."""
        values = len(space.axes[self.axis])
        return space.size // values * math.ceil(math.log2(values + 1))

    def _verdicts(
        self, space: DesignSpace, results: pl.LazyFrame, probes: Index
    ) -> tuple[Mask, Mask]:
        """Return for each probe whether it met the condition, and whether it is feasible."""
        what = f"slo '{self.slo}'"
        columns = dict.fromkeys([*space.axes, *names_in(self.slo, what), "status"])
        rows = answers_at(space, results.select(list(columns)), probes)
        status = pl.col("status").cast(pl.String)
        met = parsed(self.slo, what) & (status == "ok")
        verdicts = rows.select(met=met, feasible=status != "infeasible").fill_null(value=False)
        return verdicts["met"].to_numpy(), verdicts["feasible"].to_numpy()


def capacity_search(written: SpaceConfig, space: DesignSpace) -> Capacity | None:
    """Return the bisection of the axis written as a capacity, if there is one.

    Raises:
        UserError: two axes are, the condition is missing, or the axis cannot be bisected.
    """
    asked = [name for name, values in written.axes.items() if is_capacity(values)]
    slo = checked(written.slo, space)
    axis = single_axis(asked, space, "ask for a capacity")
    if axis is None:
        if slo is not None:
            raise UserError(
                "`slo` is met by bisection: write an axis as capacity 0.1..64, or use `where`"
            )
        return None
    if slo is None:
        simulator = load_simulator(space.simulator)
        example = ""
        if isinstance(simulator, CarriesLoad):
            example = f", such as slo: {simulator.deadlines}"
        raise UserError(f"axis '{axis}' asks for a capacity, so the space needs an `slo:`{example}")
    for rule in space.rules:  # the ladder would end at a rung it forbids
        texts = (rule.text, *rule.derived.values())
        if any(axis in names_in(text, rule.what) for text in texts):
            raise UserError(
                f"axis '{axis}' asks for a capacity, so no constraint can name it: "
                f"{shown(rule.text)}; write the range into it, as in capacity 0.1..64"
            )
    return Capacity(axis, slo)
