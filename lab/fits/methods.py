"""How numbers are fitted and judged: leave-one-group-out, intervals, non-negative least squares.

An interval is the quantile range of errors of rows that no fit has seen (split conformal
prediction: Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from lab.fits.driver import settings
from lab.tables.rows import Bools
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED, REGIMES_S, Band

Row = TypeVar("Row")
Model = TypeVar("Model")
Label = TypeVar("Label", bound=Hashable)

COVERED_SHARE = 0.9
"""Part of the measurements that an interval covers."""

CONFIG = settings(__file__)


def grouped(rows: Iterable[Row], key: Callable[[Row], Label]) -> dict[Label, list[Row]]:
    """Return the rows of each key, in the order of their first appearance.

    >>> grouped([3, 1, 4, 1], lambda row: row % 2)
    {1: [3, 1, 1], 0: [4]}
    """
    found: dict[Label, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def leave_one_out(
    rows: Sequence[Row], group_of: Callable[[Row], Hashable], fit: Callable[[list[Row]], Model]
) -> Iterator[tuple[list[Row], Model]]:
    """Yield the rows of each group, with the model fitted to the rows of all other groups."""
    for group, inside in grouped(rows, group_of).items():
        yield inside, fit([row for row in rows if group_of(row) != group])


def quantile(
    values: ArrayLike, shares: ArrayLike, groups: Sequence[Hashable] | None = None
) -> Floats:
    """Return quantiles of held-out values; with groups, every group has the same weight.

    >>> float(quantile([1.0, 2.0, 3.0, 4.0, 9.0], 0.5, "aaaab"))
    4.0
    """
    values, shares = np.asarray(values, np.float64), np.asarray(shares, np.float64)
    if groups is None:
        return np.asarray(np.quantile(values, shares), np.float64)
    code = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = np.array([code[group] for group in groups])
    weights = 1.0 / np.bincount(index)[index]
    found = np.quantile(values, shares, weights=weights, method="inverted_cdf")
    return np.asarray(found, np.float64)


def interval(
    ratio: ArrayLike, groups: Sequence[Hashable] | None = None, *, widen: float = 1.0
) -> tuple[float, float]:
    """Return the factors on a prediction between which 90 % of measurements lie.

    `ratio`: measured over predicted, of held-out rows. `groups`: of rows that err together.
    `widen`: factor on the logarithm of both ends, 1 + 1 / n where only n groups were seen.
    """
    low, high = quantile(ratio, COVERED, groups).tolist()
    return min(low, 1.0) ** widen, max(high, 1.0) ** widen


def band_of(predicted_s: Floats, measured_s: Floats, *, widen: float = 1.0) -> Band:
    """Return the interval in each regime of predicted time, from rows that no fit has seen."""
    ratio = measured_s / predicted_s
    regime = np.searchsorted(REGIMES_S, predicted_s, side="right")
    ends = []
    for number in range(len(REGIMES_S) + 1):
        inside = ratio[regime == number]
        some = inside if inside.size >= CONFIG.rows_per_regime else ratio
        ends.append(interval(some, widen=widen))
    return Band(*zip(*ends, strict=True))


def matern(distance: Floats) -> Floats:
    """Return the covariance by Matérn's kernel of order 3/2, for distances in length scales."""
    far = np.sqrt(3.0) * np.abs(distance)
    return np.asarray((1.0 + far) * np.exp(-far), np.float64)


@dataclass(frozen=True)
class Constant:
    """A number to fit: its column and its prior."""

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

    @property
    def design(self) -> Floats:
        """The columns of the constants, a row per measurement."""
        return np.stack([c.column for c in self.constants], axis=-1)

    def predicted_s(self, values: Floats) -> Floats:
        """Return the times under given constants."""
        return np.asarray(self.fixed_s + self.design @ values, np.float64)

    def named(self, values: Floats) -> dict[str, float]:
        """Return values by the names of the constants."""
        return dict(zip((c.name for c in self.constants), values.tolist(), strict=True))


@dataclass(frozen=True)
class LeastSquaresFit:
    """Constants of all rows and without each group, and held-out predictions."""

    values: Floats
    without: Mapping[str, Floats]
    held_out_s: Floats


def fit_by_group(problem: LeastSquares) -> LeastSquaresFit:
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
    mean, deviation = np.array([(c.mean, c.deviation) for c in problem.constants]).T
    weight = group_weights(problem.groups)[train] / CONFIG.row_error
    return least_log_error(
        problem.design[train],
        problem.fixed_s[train],
        problem.measured_s[train],
        weight,
        scale=deviation,
        prior=mean / deviation,
        soften=lambda error: (1.0 + (weight * error) ** 2) ** -0.25,
        rounds=CONFIG.rounds,
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
    """Return non-negative values with the least logarithmic error of `fixed_s + design @ values`.

    `scale` are typical sizes of the values. In each of `rounds`, `soften` gives the weight of a row
    from its log(predicted / measured). `prior`: expected values over their scales, each as one more
    row.
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
    """Return weights of rows: a group has the weight of the square root of its size."""
    _, index, count = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    return np.asarray((CONFIG.many_rows / count[index]) ** 0.25, np.float64)


def best_share(shares: Floats, errors: Sequence[Callable[[float], Floats]]) -> float:
    """Return the share at which the mean of the rows' errors is least.

    >>> best_share(np.array([0.2, 0.4, 0.6]), [lambda share: np.array([abs(share - 0.5)])])
    0.4
    """

    def mean(share: float) -> float:
        return float(np.mean(np.concatenate([error(share) for error in errors])))

    return float(min(shares.tolist(), key=mean))
