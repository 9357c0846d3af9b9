"""Certificates by branch and bound: the search, and its check from the boxes that were cut.

The boxes that a search did not cut cover the space, and each holds no design that is better by more
than the share `within`: its bound says so, or its single design was evaluated. A check derives
these boxes from the masks in the certificate, which shows the cover, and bounds a random sample of
them again, or all. A share `f` of wrong boxes escapes a sample of `n` with probability `(1 - f)^n`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from sweeper.engines.row_calls import RowCalls, row_calls
from sweeper.questions import Bounds
from sweeper.report.certificate import Certificate, Choice, choice_of, values_at
from sweeper.samplers import MEETS, Goal, Observations
from sweeper.samplers._boxes import Cuts
from sweeper.samplers._search_driver import scenario_numbers
from sweeper.samplers.bounds import BoundedSearch, partition_of
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Index

VALUE = "value"


@dataclass(frozen=True)
class BoxWork:
    """Bounds of boxes and values of designs, as worker processes compute them."""

    space: DesignSpace
    minimise: str
    where: str

    def bounds(self, first: Index, last: Index) -> Mapping[str, Floats]:
        """Return the bounds of boxes, given by their first and last designs."""
        simulator = load_simulator(self.space.simulator)
        assert isinstance(simulator, Bounds)
        return simulator.bounds(self.space.batch(first), self.space.batch(last))

    def values(self, index: Index) -> Mapping[str, Floats]:
        """Return the objective of designs; NaN where they do not meet the condition."""
        order = np.argsort(index, kind="stable")
        found = values_at(self.space, index[order], self.minimise, self.where)
        values = np.empty(len(index))
        values[order] = [math.nan if v is None else v for v in found]
        return {VALUE: values}


def calls_of(
    space: DesignSpace, goal: Goal, workers: int | None = None
) -> AbstractContextManager[RowCalls]:
    """Return calls of the bounds and values of a space, by the factor with the most values.

    `workers`: number of child processes; None takes one per core.
    """
    (minimise,) = goal.objectives
    return row_calls(
        BoxWork(space, minimise, goal.where or ""), functools.partial(_key, space), workers
    )


def _key(space: DesignSpace, index: Index) -> Ints:
    """Return the row of each design in the largest factor that no box spans."""
    simulator = load_simulator(space.simulator)
    ranged = simulator.ranged if isinstance(simulator, Bounds) else ()
    sizes = [0 if set(f.columns) & set(ranged) else len(f) for f in space.factors]
    codes: Ints = np.asarray(space.codes(index)[int(np.argmax(sizes))], np.int64)
    return codes


def choices_by_bounds(
    space: DesignSpace, goal: Goal, within: float, calls: RowCalls
) -> tuple[list[Choice], list[Mapping[str, Any]], int, Cuts]:
    """Return the best design of each scenario by branch and bound.

    Returns:
        The choices; the numbers and values of evaluated designs that meet the condition; the number
        of evaluated designs; the boxes that were cut.
    """
    search = BoundedSearch(partition_of(space, goal), goal, within, _bounds_by(calls))
    best: dict[int, tuple[float, int]] = {}
    seen = np.empty(0, np.int64)
    evaluated: list[Mapping[str, Any]] = []
    while len(asked := search.ask()):
        new = np.setdiff1d(asked, seen)
        seen = np.union1d(seen, new)
        values = calls.call("values", new)[VALUE]
        _tell(search, space, goal, new, np.where(np.isnan(values), np.inf, values))
        groups = scenario_numbers(space, goal.given, new)
        for number, value, group in zip(
            new.tolist(), values.tolist(), groups.tolist(), strict=True
        ):
            if math.isfinite(value):
                evaluated.append({"index": number, VALUE: value})
                best[group] = min(best.get(group, (math.inf, -1)), (value, number))
    choices = [choice_of(space, goal.given, number, value) for value, number in best.values()]
    return choices, evaluated, len(seen), search.cuts


def _bounds_by(calls: RowCalls) -> Any:
    return functools.partial(calls.call, "bounds")


def _tell(
    search: BoundedSearch, space: DesignSpace, goal: Goal, index: Index, values: Floats
) -> None:
    met = np.isfinite(values)
    groups = scenario_numbers(space, goal.given, index)
    tier = np.where(met, MEETS, MEETS + 1)
    search.tell(Observations(index, values[:, np.newaxis], tier, groups, np.zeros(len(index))))


def check_bounds(
    certificate: Certificate, rows: int, seed: int, workers: int | None = None
) -> Iterator[str]:
    """Bound a sample of the boxes of a certificate again, and evaluate random designs.

    Args:
        certificate: the certificate.
        rows: number of boxes, and of designs; 0 bounds all boxes again.
        seed: seed of the sample, which the author of the file cannot know.
        workers: number of child processes; None takes one per core.

    Raises:
        UserError: a box is not excluded, or a design is better.
    """
    space, random = certificate.space, np.random.default_rng(seed)
    goal = Goal({certificate.minimise: "min"}, certificate.where or None, tuple(certificate.given))
    partition = partition_of(space, goal, int(certificate.cuts.get("parts", 0)))
    low, high = Cuts.from_dict(certificate.cuts).leaves(partition)
    yield f"{len(low):,} boxes cover all {space.size:,} designs before constraints"
    count = min(rows or len(low), len(low))
    picked = np.sort(random.choice(len(low), count, replace=False))
    with calls_of(space, goal, workers) as calls:
        search = BoundedSearch(
            partition,
            goal,
            certificate.within,
            _bounds_by(calls),
            boxes=(low[picked], high[picked]),
        )
        known = [(c.index, c.value) for c in certificate.choices if c.index is not None]
        index = np.array([number for number, _ in known], np.int64)
        values = np.array([value for _, value in known], np.float64)
        _tell(search, space, goal, index, values)
        left = search.remaining
        if not left.is_single.all():
            box = int(np.flatnonzero(~left.is_single)[0])
            first, last = (partition.number(e[box : box + 1])[0] for e in (left.low, left.high))
            raise UserError(
                f"designs {first} to {last} are not excluded: their bound of "
                f"{certificate.minimise} is {left.least[box, 0]:.6g}"
            )
        single = partition.number(left.low)
        _check_none_better(certificate, goal, single, calls)
        yield _said(count, len(low), certificate)
        if rows:
            drawn = np.unique(random.integers(0, space.size, rows))
            kept = space.kept(drawn)
            drawn = drawn if kept is None else drawn[kept]
            _check_none_better(certificate, goal, drawn, calls)
            yield f"{len(drawn):,} random designs evaluated: none is better"


def _said(count: int, boxes: int, certificate: Certificate) -> str:
    share = f"by more than {100 * certificate.within:g} %"
    if count == boxes:
        return f"all boxes bounded again: no design is better {share}"
    wrong = 1.0 - math.pow(0.02, 1.0 / count)
    return (
        f"{count:,} random boxes bounded again: no design of these is better {share}; if "
        f"{100 * wrong:.2g} % of all boxes were wrong, the sample would show none with a "
        "probability of 2 %"
    )


def _check_none_better(certificate: Certificate, goal: Goal, index: Index, calls: RowCalls) -> None:
    """Evaluate designs, and raise UserError if one is better than the answer by too much."""
    if not len(index):
        return
    space = certificate.space
    best = {
        int(scenario_numbers(space, goal.given, np.array([one.index]))[0]): float(one.value or 0.0)
        for one in certificate.choices
        if one.index is not None
    }
    values = calls.call("values", index)[VALUE]
    groups = scenario_numbers(space, goal.given, index)
    for number, value, group in zip(index.tolist(), values.tolist(), groups.tolist(), strict=True):
        if value < best.get(group, math.inf) * (1.0 - certificate.within):
            raise UserError(
                f"a better design exists: number {number} has {certificate.minimise} {value:.6g}"
            )
