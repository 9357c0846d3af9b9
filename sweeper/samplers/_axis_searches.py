"""Samplers that an axis of the space asks for: a bisection and a refinement.

`Capacity` finds the largest value of one axis that meets a condition, for every other combination.
What meets a service-level objective at some load meets it at a lower one, up to noise, so the limit
is bisected over a ladder of values 2.5 % apart.

`Refined` evaluates all points at the first value of an axis, usually a fidelity, and the front of
these at the second value. The front is that of rows relabelled with the second value, so a space's
`where` may ask for the second value alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.query.pareto import pareto_front
from sweeper.questions import CarriesLoad
from sweeper.samplers import Goal, Results
from sweeper.samplers._search_driver import answers_at
from sweeper.samplers.random import allowed, in_blocks
from sweeper.space.axes import is_capacity, refined_values
from sweeper.space.design_space import DesignSpace, checked
from sweeper.space.points import Batch, Index, Mask, Span
from sweeper.space.space_file import SpaceConfig
from sweeper.space.sql import names_in, parsed, shown


def at_first_value(space: DesignSpace, axis: str) -> tuple[Index, int]:
    """Return the numbers of all points at the first value of an axis, and the axis's stride."""
    [place] = [i for i, factor in enumerate(space.factors) if axis in factor.columns]
    step, values = math.prod(space.sizes[place + 1 :].tolist()), len(space.axes[axis])
    every = np.arange(space.size // values, dtype=np.int64)
    return every // step * (step * values) + every % step, step


def single_axis(asked: Sequence[str], space: DesignSpace, what: str) -> str | None:
    """Return the one axis of `asked`; None if there is none.

    Raises:
        UserError: there are two, or the axis is zipped with others.
    """
    if len(asked) > 1:
        raise UserError(f"only one axis can {what}, not {' and '.join(asked)}")
    if asked and any(asked[0] in f.columns and len(f.columns) > 1 for f in space.factors):
        raise UserError(f"axis '{asked[0]}' cannot {what}, because it is zipped with others")
    return asked[0] if asked else None


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
        while (undecided := np.flatnonzero(fails - passes > 1)).size:
            middle = (passes[undecided] + fails[undecided]) // 2
            probes = base[undecided] + middle * step
            yield in_blocks(probes)
            met, feasible = self._verdicts(space, results(), probes)
            passes[undecided[met]] = middle[met]
            fails[undecided[~met]] = middle[~met]
            # A design that is infeasible at one load is infeasible at every load.
            fails[undecided[~feasible]] = passes[undecided[~feasible]] + 1

    def size(self, space: DesignSpace) -> int:
        """Return the largest possible number of probes."""
        values = len(space.axes[self.axis])
        return space.size // values * math.ceil(math.log2(values + 1))

    def _verdicts(
        self, space: DesignSpace, results: pl.LazyFrame, probes: Index
    ) -> tuple[Mask, Mask]:
        """Return a mask of the probes that met the condition, and a mask of the feasible ones."""
        what = f"slo '{self.slo}'"
        columns = dict.fromkeys([*space.axes, *names_in(self.slo, what), "status"])
        rows = answers_at(space, results.select(list(columns)), probes)
        status = pl.col("status").cast(pl.String)
        met = parsed(self.slo, what) & (status == "ok")
        verdicts = rows.select(met=met, feasible=status != "infeasible").fill_null(value=False)
        return verdicts["met"].to_numpy(), verdicts["feasible"].to_numpy()


def capacity_search(written: SpaceConfig, space: DesignSpace) -> Capacity | None:
    """Return the bisection of the axis written as a capacity; None without such an axis.

    Raises:
        UserError: there are two such axes, no condition, or a constraint that names the axis.
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
    for rule in space.rules:  # the bisection would end at a forbidden value
        texts = (rule.text, *rule.derived.values())
        if any(axis in names_in(text, rule.what) for text in texts):
            raise UserError(
                f"axis '{axis}' asks for a capacity, so no constraint can name it: "
                f"{shown(rule.text)}; write the range into it, as in capacity 0.1..64"
            )
    return Capacity(axis, slo)


SHARE = 1e-3  # expected share of points on the front


@dataclass(frozen=True)
class Refined:
    """Evaluates the second value of an axis on the front of the first value."""

    axis: str
    goal: Goal

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        """Yield all points at the first value, then their front at the second value."""
        first, step = at_first_value(space, self.axis)
        yield [Span(0, step)] if 2 * step == len(space) else in_blocks(allowed(space, first))
        yield in_blocks(self._front(space, results()) + step)

    def size(self, space: DesignSpace) -> int:
        """Return the rough number of points that are picked."""
        return round(space.size * space.share * (0.5 + SHARE))

    def _front(self, space: DesignSpace, rows: pl.LazyFrame) -> Index:
        first, second = space.axes[self.axis]
        judged = rows.filter(pl.col(self.axis).cast(pl.String) == first)
        judged = judged.with_columns(pl.lit(second).alias(self.axis))
        goal = self.goal
        front = pareto_front(judged, goal.objectives, where=goal.where, per=goal.given)
        numbers = space.index_of(front.with_columns(pl.lit(first).alias(self.axis)))
        return np.sort(numbers)


def refined_search(written: SpaceConfig, space: DesignSpace, goal: Goal) -> Refined | None:
    """Return the sampler of an axis written as `first A then B`; None without such an axis.

    Raises:
        UserError: there are two such axes, or the axis is zipped with others.
    """
    asked = [name for name, values in written.axes.items() if refined_values(values)]
    axis = single_axis(asked, space, "have a first and a then")
    return None if axis is None else Refined(axis, goal)
