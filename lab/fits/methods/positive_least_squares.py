"""Times that are sums of columns times constants, none of them negative, with a prior for each.

Errors are relative and count less the larger they are (soft L1). Whole groups of rows are left out
in turn, and count as the square root of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.tables.rows import Bools
from simulators.core.jit import Floats

ROW_ERROR = 0.10
"""Rows scatter by about this much for reasons no constant explains."""

MANY_ROWS = 50.0
ROUNDS, SWEEPS = 8, 300


@dataclass(frozen=True)
class Constant:
    """One number to be fitted: what it multiplies, and what is known of it before."""

    name: str
    column: Floats
    mean: float
    deviation: float


@dataclass(frozen=True)
class Problem:
    """Measured times of rows, each in a group, and what they are sums of."""

    measured_s: Floats
    groups: Sequence[str]
    fixed_s: Floats  # the part of each row that no constant multiplies
    constants: Sequence[Constant]

    def predicted_s(self, values: Floats) -> Floats:
        """Return the times under given constants."""
        design = np.stack([c.column for c in self.constants], axis=-1)
        return np.asarray(self.fixed_s + design @ values, np.float64)


@dataclass(frozen=True)
class Fitted:
    """The constants of all rows, and of all but each group; what they say of the group left out."""

    values: Floats
    without: Mapping[str, Floats]
    held_out_s: Floats


def fit(problem: Problem) -> Fitted:
    """Return the constants of all rows, and those with each group left out."""
    groups = np.array(problem.groups)
    without, held_out = {}, np.empty(groups.size)
    for group in np.unique(groups):
        inside = groups == group
        without[str(group)] = solve(problem, ~inside)
        held_out[inside] = problem.predicted_s(without[str(group)])[inside]
    return Fitted(solve(problem, np.ones(groups.size, bool)), without, held_out)


def solve(problem: Problem, train: Bools) -> Floats:
    """Return the constants fitted to some of the rows, none of them negative."""
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
    """Return values, none negative, that bring `fixed_s + design @ values` near what was measured.

    The prior, where one is known, is that of values over their scales. `soften` says what a row
    still weighs, given the logarithm of predicted over measured time.
    """
    relative, fixed = design / measured_s[:, None], fixed_s / measured_s
    soft, linear = np.ones(fixed.size), np.ones(fixed.size)
    values = np.zeros(scale.size)
    for _ in range(rounds):
        w = weight * soft * linear
        a, b = relative * w[:, None] * scale, w * (1.0 - fixed)
        if prior is not None:
            a, b = np.concatenate([a, np.eye(scale.size)]), np.concatenate([b, prior])
        values = non_negative(a, b) * scale
        ratio = np.maximum(fixed + relative @ values, 1e-3)
        error = np.log(ratio)
        soft = soften(error)
        # The residual is log(ratio), not ratio - 1.
        linear = np.where(np.abs(ratio - 1.0) > 1e-6, np.abs(error / (ratio - 1.0 + 1e-12)), 1.0)
    return values


def non_negative(a: Floats, b: Floats) -> Floats:
    """Return the x of least |a x - b| without negative entries, by descent along each in turn.

    >>> non_negative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -3.0]))
    array([2., 0.])
    """
    square, right = a.T @ a, a.T @ b
    x = np.zeros(right.size)
    for _ in range(SWEEPS):
        for i in range(x.size):
            x[i] = max(0.0, x[i] + (right[i] - square[i] @ x) / square[i, i])
    return x


def group_weights(groups: Sequence[str]) -> Floats:
    """Return weights under which a group counts as the square root of its rows."""
    _, index, count = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    return np.asarray((MANY_ROWS / count[index]) ** 0.25, np.float64)
