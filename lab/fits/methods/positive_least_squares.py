"""Times as sums of columns times non-negative constants, each with a prior.

Errors are logarithms of predicted over measured time with a soft-L1 loss: `scipy.optimize.nnls` on
rows that are weighted anew in rounds. Groups of rows are left out in turn, and weigh as the square
root of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from lab.tables.rows import Bools
from simulators.core.jit import Floats

ROW_ERROR = 0.10
"""Scatter of rows that no constant explains."""

MANY_ROWS, ROUNDS = 50.0, 8


@dataclass(frozen=True)
class Constant:
    """A number to be fitted: the column it multiplies, and its prior."""

    name: str
    column: Floats
    mean: float
    deviation: float


@dataclass(frozen=True)
class LeastSquares:
    """Measured times of rows, each in a group, and the terms of their sums."""

    measured_s: Floats
    groups: Sequence[str]
    fixed_s: Floats  # the part of each row that no constant multiplies
    constants: Sequence[Constant]

    def predicted_s(self, values: Floats) -> Floats:
        """Return the times under given constants."""
        design = np.stack([c.column for c in self.constants], axis=-1)
        return np.asarray(self.fixed_s + design @ values, np.float64)

    def named(self, values: Floats) -> dict[str, float]:
        """Return values by the names of the constants."""
        return dict(zip((c.name for c in self.constants), values.tolist(), strict=True))


@dataclass(frozen=True)
class LeastSquaresFit:
    """Constants of all rows and without each group, and the predictions of each group left out."""

    values: Floats
    without: Mapping[str, Floats]
    held_out_s: Floats


def fit(problem: LeastSquares) -> LeastSquaresFit:
    """Return the constants of all rows, and those with each group left out."""
    groups = np.array(problem.groups)
    without, held_out = {}, np.empty(groups.size)
    for group in np.unique(groups):
        inside = groups == group
        without[str(group)] = solve(problem, ~inside)
        held_out[inside] = problem.predicted_s(without[str(group)])[inside]
    return LeastSquaresFit(solve(problem, np.ones(groups.size, bool)), without, held_out)


def solve(problem: LeastSquares, train: Bools) -> Floats:
    """Return the constants fitted to some of the rows."""
    design = np.stack([c.column for c in problem.constants], axis=-1)[train]
    mean = np.array([c.mean for c in problem.constants])
    deviation = np.array([c.deviation for c in problem.constants])
    weight = group_weights(problem.groups)[train] / ROW_ERROR
    return least_log_error(
        design,
        problem.fixed_s[train],
        problem.measured_s[train],
        weight,
        scale=deviation,
        prior=mean / deviation,
        soften=lambda error: (1.0 + (weight * error) ** 2) ** -0.25,
        rounds=ROUNDS,
    )


def least_log_error(
    design: Floats,
    fixed_s: Floats,
    measured_s: Floats,
    weight: Floats,
    *,
    scale: Floats,
    soften: Callable[[Floats], Floats],
    rounds: int,
    prior: Floats | None = None,
) -> Floats:
    """Return non-negative values with the least error of `fixed_s + design @ values`.

    Args:
        design: a row per measurement, a column per value.
        fixed_s: seconds of each row that no value multiplies.
        measured_s: measured seconds.
        weight: of each row.
        scale: typical sizes of the values.
        soften: weight of a row, from its log(predicted / measured).
        rounds: in which rows are weighted anew.
        prior: expected values over their scales, each as one more row.
    """
    relative, fixed = design / measured_s[:, None], fixed_s / measured_s
    soft, linear = np.ones(fixed.size), np.ones(fixed.size)
    values = np.zeros(scale.size)
    for _ in range(rounds):
        w = weight * soft * linear
        a, b = relative * w[:, None] * scale, w * (1.0 - fixed)
        if prior is not None:
            a, b = np.concatenate([a, np.eye(scale.size)]), np.concatenate([b, prior])
        values = nnls(a, b)[0] * scale
        ratio = np.maximum(fixed + relative @ values, 1e-3)
        error = np.log(ratio)
        soft = soften(error)
        # The residual is log(ratio), not ratio - 1.
        linear = np.where(np.abs(ratio - 1.0) > 1e-6, np.abs(error / (ratio - 1.0 + 1e-12)), 1.0)
    return values


def group_weights(groups: Sequence[str]) -> Floats:
    """Return weights under which a group counts as the square root of its rows."""
    _, index, count = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    return np.asarray((MANY_ROWS / count[index]) ** 0.25, np.float64)
