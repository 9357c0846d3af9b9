"""Shapley values: the share of each group of facts in a difference, whatever the order of changes.

Shapley, "A value for n-person games" (1953). The share of a group is its effect, averaged over all
orders in which the groups change from the old to the new:

    phi(i) = sum over S without i of |S|! (n - |S| - 1)! / n! (v(S + i) - v(S))

Shares add up to the whole difference, a group without effect has none, and old and new exchanged
change all signs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from math import factorial

Values = Mapping[str, float]
"""Values of metrics."""


def shapley_values(
    groups: Sequence[str], value: Callable[[Collection[str]], Values]
) -> dict[str, dict[str, float]]:
    """Return the share of each group in the difference of every metric, by group and metric.

    `value` returns the metrics of the mixture whose groups are the new ones; it is called once for
    each of the 2^n sets of groups.

    >>> part = {"kernels": 3.0, "host": 1.0}
    >>> shares = shapley_values([*part], lambda taken: {"ms": sum(part[one] for one in taken) ** 2})
    >>> [shares[group]["ms"] for group in part], 4.0**2
    ([12.0, 4.0], 16.0)
    """
    count = len(groups)
    sets = [frozenset(some) for n in range(count + 1) for some in combinations(groups, n)]
    values = {some: value(some) for some in sets}
    shares: dict[str, dict[str, float]] = {}
    for group in groups:
        without = [some for some in sets if group not in some]
        share = dict.fromkeys(values[frozenset()], 0.0)
        for some in without:
            weight = factorial(len(some)) * factorial(count - len(some) - 1) / factorial(count)
            for metric, before in values[some].items():
                share[metric] += weight * (values[some | {group}][metric] - before)
        shares[group] = share
    return shares
