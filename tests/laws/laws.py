"""Laws: statements that hold for every answer of a simulator, checked at random points.

A module holds the laws of one simulator. Each law is a function of a `Sample` and returns, for each
feasible row, whether the law holds; its docstring is the law. A model that breaks a law on purpose
says so with its reason in that docstring, and the law leaves those rows out.
"""

from __future__ import annotations

import math
import os
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from simulators.catalog.gpu import GPU_SCALES
from simulators.core.columns import schema_of
from simulators.core.contract import Simulator
from simulators.core.errors import UserError
from simulators.core.fields import Column, ValueRule, columns_of

Mask = NDArray[np.bool_]
Draw = Callable[[np.random.Generator], Any]
FEW, MANY = 80, int(os.environ.get("SWEEPER_LAW_POINTS", "20000"))
PAIRS = 1_000
"""Points that laws about changed points use: the first ones of a sample."""
SEED = 20261125
COUNTS: Counter[str] = Counter()
"""Laws and points that were checked, by simulator; printed at the end of a run."""


def close(one: Any, other: Any, relative: float = 1e-9) -> Mask:
    """Return where two columns are equal up to rounding; two NaN are equal."""
    return np.isclose(np.asarray(one, float), np.asarray(other, float), relative, 0.0, True)


def at_most(one: Any, other: Any, relative: float = 1e-9) -> Mask:
    """Return where a column is at most another one, up to rounding; NaN is allowed."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    return ~(one > other + relative * np.abs(other))


@dataclass
class Sample:
    """Points of a simulator and their results."""

    simulator: Simulator
    points: list[dict[str, Any]]

    @cached_property
    def rows(self) -> pl.DataFrame:
        """Results of all points, in their order."""
        return pl.concat(_evaluated(self.simulator, self.points), how="diagonal_relaxed")

    @cached_property
    def feasible(self) -> Mask:
        """The points that have an answer."""
        return (self.rows["status"] == "ok").to_numpy()

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of the feasible rows: an input, or a metric (null as NaN)."""
        if name in self.points[0]:
            values = [p[name] for p, ok in zip(self.points, self.feasible, strict=True) if ok]
            return np.array([math.nan if value is None else value for value in values])
        column = self.rows[name].filter(pl.Series(self.feasible))
        return column.to_numpy() if column.dtype.is_numeric() else np.array(column.to_list())

    def per_row(self, of: Callable[[dict[str, Any]], Any]) -> NDArray[Any]:
        """Return a function of each feasible point."""
        return np.array([of(p) for p, ok in zip(self.points, self.feasible, strict=True) if ok])

    def changed(self, **values: Any) -> Pair:
        """Return the sample beside its first points (`PAIRS`) with other values.

        A value is a constant, or a function of the point. Dots of names are written as `__`.
        """
        others = [
            p | {k.replace("__", "."): v(p) if callable(v) else v for k, v in values.items()}
            for p in self.points[:PAIRS]
        ]
        return Pair(self, Sample(self.simulator, others))


@dataclass
class Pair:
    """Two samples, compared where both are feasible; laws hold elsewhere."""

    before: Sample
    after: Sample

    @cached_property
    def both(self) -> Mask:
        """The points that are feasible in both samples."""
        both = np.zeros(self.before.feasible.size, bool)
        both[: self.after.feasible.size] = self.after.feasible
        return both & self.before.feasible

    def holds(self, law: Callable[[NDArray[Any], NDArray[Any]], Mask], name: str) -> Mask:
        """Return where `law(before, after)` holds for a column, per feasible row of `before`."""
        both = self.both
        found = np.ones(both.size, bool)
        before = self.before[name][both[self.before.feasible]]
        answered = self.after.feasible
        after = self.after[name][both[: answered.size][answered]]
        found[both] = law(before, after)
        return found[self.before.feasible]


@dataclass
class Laws:
    """The laws of one simulator, and the distribution of its random points.

    `draws` replaces the distribution of columns by name; `consistent` makes a point consistent.
    `alike` neighboring points are equal in the columns `shared`: simulators that price such points
    together are faster.
    """

    simulator: Simulator
    draws: Mapping[str, Draw] = field(default_factory=dict)
    consistent: Callable[[dict[str, Any]], dict[str, Any]] = lambda point: point
    few: int = FEW
    many: int = MANY
    shared: tuple[str, ...] = ()
    alike: int = 1
    found: list[Callable[[Sample], Mask]] = field(default_factory=list)
    _samples: dict[int, Sample] = field(default_factory=dict)

    def law(self, check: Callable[[Sample], Mask]) -> Callable[[Sample], Mask]:
        """Register a law."""
        self.found.append(check)
        return check

    def sample(self, count: int) -> Sample:
        """Return `count` random points, always the same ones."""
        if count not in self._samples:
            dice = np.random.default_rng([SEED, count])
            columns = columns_of(self.simulator.point)
            points: list[dict[str, Any]] = []
            for number in range(count):
                point = {c.name: drawn(c, self.draws.get(c.name), dice) for c in columns}
                if number % self.alike:
                    point |= {name: points[-1][name] for name in self.shared}
                points.append(self.consistent(point))
            self._samples[count] = Sample(self.simulator, points)
        return self._samples[count]

    def add_same_alone(self, count: int = 20) -> None:
        """Register that the first rows have the same values alone and in a batch."""

        def row_is_the_same_alone(sample: Sample) -> Mask:
            """A row has the same bits alone and in a batch."""
            rows = sample.rows.filter(pl.Series(sample.feasible))
            found = np.ones(rows.height, bool)
            for number, point in enumerate(sample.per_row(lambda p: p)[:count]):
                alone = Sample(self.simulator, [point]).rows
                found[number] = alone.equals(rows[number].cast(dict(alone.schema)))
            return found

        self.law(row_is_the_same_alone)

    def add_larger_gpus(self) -> None:
        """Register that more SMs, a higher clock, more bandwidth or a larger L2 never cost time."""

        def larger(scale: str, factor: float) -> Callable[[Sample], Mask]:
            def never_slower(sample: Sample) -> Mask:
                pair = sample.changed(**{scale: lambda p: factor * p[scale]})
                return pair.holds(lambda one, two: at_most(two, one), "latency_s")

            never_slower.__name__ = f"larger_{scale}_is_never_slower"
            never_slower.__doc__ = f"{factor:g} times {scale} does not increase the latency."
            return never_slower

        for scale in GPU_SCALES:
            self.law(larger(scale, 4.0 if scale == "l2_scale" else 2.0))

    def tests(self) -> Callable[[Any, int], None]:
        """Return the test of all laws: a module binds it to a name that begins with `test_`."""

        @pytest.mark.parametrize("law", self.found, ids=lambda law: law.__name__)
        @pytest.mark.parametrize(
            "count",
            [self.few, pytest.param(self.many, marks=[pytest.mark.slow])],
            ids=["few", "many"],
        )
        def test_law(law: Callable[[Sample], Mask], count: int) -> None:
            sample = self.sample(count)
            assert sample.feasible.mean() > 0.1, Counter(sample.rows["reason"]).most_common(8)
            holds = law(sample)
            assert holds.size == sample.feasible.sum(), "a law answers for each feasible row"
            COUNTS[f"{self.simulator.name} laws"] += 1
            COUNTS[f"{self.simulator.name} points"] = max(
                COUNTS[f"{self.simulator.name} points"], count
            )
            if not holds.all():
                pytest.fail(f"{law.__doc__}\n{_violation(self, sample, holds)}", pytrace=False)

        return test_law


def _violation(laws: Laws, sample: Sample, holds: Mask) -> str:
    """Return the number of violations, and the one with the fewest unusual values."""
    usual = {c.name: c.default for c in columns_of(laws.simulator.point)}
    points = sample.per_row(lambda p: p)[~holds]
    unusual = [{k: v for k, v in p.items() if v != usual[k]} for p in points]
    number = min(range(len(unusual)), key=lambda n: len(unusual[n]))
    row = (
        sample.rows.filter(pl.Series(sample.feasible))
        .filter(pl.Series(~holds))
        .row(number, named=True)
    )
    return f"{len(unusual)} of {holds.size} rows break it, for example {unusual[number]}\n{row}"


def drawn(column: Column, draw: Draw | None, dice: np.random.Generator) -> Any:
    """Return a random value of a column: its default in half of the cases."""
    if draw is not None:
        return draw(dice)
    rule = column.metadata.get("rule", ValueRule())
    kind = next(k for k in (typing.get_args(column.hint) or (column.hint,)) if k is not type(None))
    fixed = rule.reads or (kind is str and not rule.known)
    if isinstance(column.default, (str, bool, int, float, type(None))) and (
        fixed or dice.random() < 0.5
    ):
        return column.default
    if kind is bool:
        return bool(dice.random() < 0.5)
    if rule.known:
        return str(dice.choice(rule.known))
    low = max(rule.at_least, rule.above, 0.0)
    high = min(rule.at_most, rule.below, max(64.0, 4.0 * low))
    value = between(low, high)(dice)
    if kind is int:
        return round(value)
    return min(
        max(value, math.nextafter(rule.above, math.inf)), math.nextafter(rule.below, -math.inf)
    )


def one_of(*values: Any) -> Draw:
    """Return a draw of one of several values, all as likely."""
    return lambda dice: values[int(dice.integers(len(values)))]


def between(low: float, high: float) -> Draw:
    """Return a draw from a range, uniform in logarithms of the value plus one."""
    return lambda dice: math.expm1(dice.uniform(math.log1p(low), math.log1p(high)))


def whole(low: int, high: int) -> Draw:
    """Return a draw of an integer, uniform in logarithms."""
    return lambda dice: round(between(low, high)(dice))


def _evaluated(simulator: Simulator, points: list[dict[str, Any]]) -> list[pl.DataFrame]:
    """Return results; a point that raises `UserError` becomes a row with status `error`."""
    batch = pa.RecordBatch.from_pylist(points, schema=schema_of(simulator.point))
    try:
        return [pl.DataFrame(simulator.evaluate(batch))]
    except UserError as wrong:
        if len(points) == 1:
            return [pl.DataFrame({"status": ["error"], "reason": [str(wrong)]})]
    half = len(points) // 2
    return _evaluated(simulator, points[:half]) + _evaluated(simulator, points[half:])
