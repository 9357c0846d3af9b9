"""Leave-one-group-out fits, and split-conformal intervals from held-out errors.

An interval is the quantile range of errors of rows that no fit has seen (Vovk, Gammerman and
Shafer, "Algorithmic learning in a random world", 2005). Where rows of a group err together, groups
count alike, and few groups show less than there is: the ends are widened by 1 + 1 / n.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from lab.tables.rows import Floats
from simulators.evidence.intervals import COVERED, REGIMES_S, Band

Row = TypeVar("Row")
Model = TypeVar("Model")

COVERED_SHARE = 0.9
"""Part of the measurements that an interval covers."""

ROWS_PER_REGIME = 30
"""With fewer held-out rows, a regime has the interval of the whole class."""


def leave_one_out(
    rows: Sequence[Row],
    group_of: Callable[[Row], Hashable],
    fit: Callable[[list[Row]], Model],
) -> Iterator[tuple[list[Row], Model]]:
    """Yield the rows of each group, with the model fitted to the rows of all other groups."""
    groups = list(map(group_of, rows))
    for group in dict.fromkeys(groups):
        inside = [row for row, one in zip(rows, groups, strict=True) if one == group]
        yield inside, fit([row for row, one in zip(rows, groups, strict=True) if one != group])


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

    Args:
        ratio: measured over predicted, of held-out rows.
        groups: of the rows, where rows of a group err together.
        widen: factor on the logarithm of both ends: 1 + 1 / n where only n groups were seen.
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
        ends.append(interval(inside if inside.size >= ROWS_PER_REGIME else ratio, widen=widen))
    return Band(*zip(*ends, strict=True))
