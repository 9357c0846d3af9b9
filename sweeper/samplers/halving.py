"""The halving sampler: a cheap fidelity of all points, the dear one where it can reach the front.

What the cheap fidelity says of a point, and its axes, foretell the dear one's objectives with an
error band, learned from what was simulated so far. Simulated next is what could improve the front
most at the good end of its band (Zuluaga, Sergent, Krause and Püschel, "Active learning for
multi-objective optimization", 2013), until nothing could by as much as is worth it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simulators.core.columns import numbers
from simulators.core.contract import Approximates, load_simulator
from simulators.core.errors import UserError
from sweeper.query.pareto_kernel import Matrix, distinct_front
from sweeper.samplers import IMPOSSIBLE, MEETS, Goal, Search, Told
from sweeper.samplers._search import Options, beginning, codes_of, ordered_of, scenario_numbers
from sweeper.samplers.random import allowed
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Index, Span
from sweeper.tables.gaussian_process import Surrogate, condensed, standardised

MOST = 200_000
"""Points of a space that can be foretold one by one."""
_VARIANCE = 0.995
"""Of the cheap answers that features keep."""
_HOPE = 0.3
"""Chance, at the good end of its band, of meeting the condition, below which a design has none."""
_UNLIKELY = 0.05
"""Chance by which a design counts at least that may not meet the condition."""
_ALIKE = 0.01
"""Designs foretold to differ by less are not simulated in one round."""


@dataclass(frozen=True)
class Halving(Options):
    """A search by two fidelities.

    Args:
        points: simulated at most.
        seed: of the designs simulated first.
        start: a Parquet or CSV file of designs to begin with, such as an earlier `front.parquet`.
        across: worst or mean: how designs count over all scenarios; empty: each has its own front.
        first: designs spread evenly to learn from first.
        batch: designs simulated at a time.
        band: standard deviations of the error band.
        worth: relative improvement of the front, at the good end of the band, that is worth a run.
    """

    first: int = 120
    batch: int = 40
    band: float = 1.0
    worth: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < 4 or self.batch < 1 or self.band <= 0.0 or self.worth < 0.0:
            raise UserError(
                "sampler.first is at least 4 designs, sampler.batch 1, sampler.band above zero, "
                "sampler.worth not below"
            )

    def search(self, space: DesignSpace, goal: Goal) -> Search:
        """Return a search that has answered all points cheaply.

        Raises:
            UserError: the space is too large for that.
        """
        return _Foretelling(self, space, goal)


def cheap_answers(space: DesignSpace, index: Index) -> pa.RecordBatch | None:
    """Return the cheap fidelity's answers to points; nothing if their simulator has none."""
    simulator, batch = load_simulator(space.simulator), space.batch(index)
    if not isinstance(simulator, Approximates):
        return None
    for name, value in simulator.cheaper:
        column = pa.array([value] * len(index), space.schema.field(name).type)
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, name, column.dictionary_encode())
    return simulator.evaluate(batch)


class _Foretelling:
    """All designs with their features, and what came of those that were simulated."""

    def __init__(self, options: Halving, space: DesignSpace, goal: Goal) -> None:
        if len(space) > MOST:
            raise UserError(
                f"sampler=halving looks at each point, and {len(space):,} are more than {MOST:,}: "
                "use nsga2, or fewer values"
            )
        self._options, self._space = options, space
        self._all = allowed(space, Span(0, len(space)).index())
        cheap = cheap_answers(space, self._all)
        answers = np.zeros((len(self._all), 0)) if cheap is None else _columns(cheap)
        self._features = np.column_stack([_axes(space, self._all), answers])
        self._told: Told | None = None
        self._groups = scenario_numbers(space, goal.given, self._all)

    def ask(self) -> Index:
        """Return the designs that may improve the front most."""
        if self._told is None:
            random = np.random.default_rng(self._options.seed)
            return beginning(self._space, self._options, self._options.first, random)
        told, rows = self._told, np.searchsorted(self._all, self._told.index)
        sure = told.tier != IMPOSSIBLE
        if sure.sum() < 4:
            return np.empty(0, np.int64)
        met = (told.tier == MEETS).astype(np.float64)
        hope, doubt = Surrogate.of(self._features[rows], met).predict(self._features)
        logs = (told.losses[sure] > 0.0).all(axis=0)
        losses = np.where(logs, np.log(np.where(logs, told.losses, 1.0)), told.losses)
        middle, spread = self._foretold(rows[sure], losses[sure])
        left = hope + self._options.band * doubt > _HOPE
        left[rows] = False
        gain = np.where(left, 1.0, 0.0)  # where no design meets the condition yet
        for group in np.unique(self._groups[rows[met > 0.0]]):
            mine = np.flatnonzero(left & (self._groups == group))
            front = losses[(met > 0.0) & (self._groups[rows] == group)]
            front = front[distinct_front(front)[0]]
            best = middle[mine] - self._options.band * spread[mine]
            scale = np.where(logs, 1.0, np.maximum(np.ptp(front, axis=0), 1e-12))
            ahead = (front[np.newaxis] - best[:, np.newaxis]) / scale
            gain[mine] = ahead.max(axis=2).min(axis=1)
        worth = np.flatnonzero(gain > self._options.worth)
        score = gain[worth] * np.clip(hope[worth], _UNLIKELY, 1.0)
        return self._all[self._apart(worth[np.argsort(-score, kind="stable")], middle)]

    def _foretold(self, rows: Index, values: Matrix) -> tuple[Matrix, Matrix]:
        """Return of every design the losses expected, and their standard deviations."""
        found = [
            Surrogate.of(self._features[rows], column).predict(self._features)
            for column in values.T
        ]
        return np.stack([m for m, _ in found], axis=1), np.stack([s for _, s in found], axis=1)

    def _apart(self, order: Index, middle: Matrix) -> Index:
        """Return the first designs of an order that are not foretold to be nearly alike."""
        picked: list[int] = []
        for row in order.tolist():
            here = [p for p in picked if self._groups[p] == self._groups[row]]
            if not here or np.abs(middle[here] - middle[row]).max(axis=1).min() >= _ALIKE:
                picked.append(row)
            if len(picked) == self._options.batch:
                break
        return np.array(picked, np.int64)

    def tell(self, told: Told) -> None:
        """Take in what was simulated."""
        joined = told if self._told is None else self._told.joined(told)
        self._told = joined.take(np.argsort(joined.index))


def _axes(space: DesignSpace, index: Index) -> Matrix:
    """Return the axes that vary as columns: numbers by their logarithm, words one by one."""
    columns = []
    codes = codes_of(space, index)
    for place, (factor, ordered) in enumerate(zip(space.factors, ordered_of(space), strict=True)):
        if len(factor) == 1:
            continue
        if ordered:
            rising = [np.array(v, np.float64) for v in factor.columns.values()]
            columns += [v[codes[:, place]] for v in rising]
        else:
            for values in factor.columns.values():
                words = dict.fromkeys(values)
                columns += [
                    np.array([v == word for v in values], np.float64)[codes[:, place]]
                    for word in words
                ]
    return standardised(np.stack(columns, axis=1) if columns else np.zeros((len(index), 0)))


def _columns(answers: pa.RecordBatch) -> Matrix:
    """Return what cheap answers say in numbers, condensed."""
    kept = [
        numbers(answers, f.name).astype(np.float64)
        for f in answers.schema
        if pa.types.is_floating(f.type)
        or pa.types.is_integer(f.type)
        or pa.types.is_boolean(f.type)
    ]
    return condensed(standardised(np.stack(kept, axis=1)), _VARIANCE)


SAMPLER = Halving
