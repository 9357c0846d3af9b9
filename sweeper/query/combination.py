"""One option for each of several groups, under limits of summed resources: an exact choice.

The multiple-choice knapsack problem with several resources, by dynamic programming over the
non-dominated sums (Nemhauser and Ullmann, "Discrete dynamic programming and capital allocation",
1969): after each group, sums that another exceeds in no resource and equals in value are dropped.
No option of a later group can make a dropped sum better than the one that dominates it, so the last
sums contain an optimum. All resources are at least zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from sweeper.query.fronts import distinct_front

_CLOSE = 1e-9
"""Relative tolerance of limits."""
_MOST = 4_000_000
"""Largest number of sums that are compared at a time."""


@dataclass(frozen=True)
class Combinations:
    """Non-dominated sums of one option of each group.

    Args:
        resources: a row per combination, a column per resource.
        value: of each combination, to be maximised.
        chosen: the option of each group, a column per group.
        count: number of all combinations.
    """

    resources: Floats
    value: Floats
    chosen: Ints
    count: int

    def best(self, limits: Sequence[float] = ()) -> int | None:
        """Return the place of the best combination within limits; None without one.

        The best has the largest value, and among these the least of the first resource, then of
        the second.
        """
        rows = self.within(limits)
        if not len(rows):
            return None
        columns = [*np.round(self.resources[rows].T, 9)[::-1], -np.round(self.value[rows], 9)]
        return int(rows[np.lexsort(columns)[0]])

    def within(self, limits: Sequence[float]) -> Ints:
        """Return the places of combinations within limits."""
        most = np.array([*limits, *[math.inf] * (self.resources.shape[1] - len(limits))])
        kept: Ints = np.flatnonzero((self.resources <= most * (1.0 + _CLOSE)).all(axis=1))
        return kept

    def least(self, resource: int, value: float, limits: Sequence[float]) -> float:
        """Return the least of a resource with at least a value, within the other limits."""
        free = [math.inf if i == resource else limit for i, limit in enumerate(limits)]
        rows = self.within(free)
        rows = rows[self.value[rows] >= value * (1.0 - _CLOSE)]
        return float(self.resources[rows, resource].min()) if len(rows) else math.inf


def combinations(
    groups: Sequence[tuple[Floats, Floats]], limits: Sequence[float] = ()
) -> Combinations:
    """Return the non-dominated combinations of one option of each group.

    Args:
        groups: resources (a row per option) and values of the options of each group.
        limits: largest sum of each resource; combinations beyond are dropped.

    Raises:
        UserError: there are too many sums.

    >>> cheap = np.array([[1.0, 4.0], [3.0, 1.0]]), np.array([1.0, 1.0])
    >>> found = combinations([cheap, cheap], [9.0, 5.0])
    >>> found.resources.tolist(), found.chosen.tolist(), found.count
    ([[4.0, 5.0], [6.0, 2.0]], [[0, 1], [1, 1]], 4)
    """
    sides = groups[0][0].shape[1]
    found = Combinations(np.zeros((1, sides)), np.zeros(1), np.zeros((1, 0), np.int64), 1)
    for resources, value in groups:
        if len(found.value) * len(value) > _MOST:
            raise UserError(
                f"{len(found.value) * len(value):,} sums of options are more than {_MOST:,}: "
                "fewer models or shares"
            )
        sums = (found.resources[:, np.newaxis] + resources).reshape(-1, sides)
        values = (found.value[:, np.newaxis] + value).reshape(-1)
        before = np.repeat(found.chosen, len(value), axis=0)
        option = np.tile(np.arange(len(value)), len(found.value))
        every = Combinations(
            sums, values, np.column_stack([before, option]), found.count * len(value)
        )
        rows = every.within(limits)
        # Sums of equal numbers in another order differ in the last bits.
        front: Floats = np.column_stack([sums[rows], -values[rows]]).round(9)
        rows = rows[np.sort(distinct_front(front)[0])] if len(rows) else rows
        found = Combinations(sums[rows], values[rows], every.chosen[rows], every.count)
    return found
