"""Combinations under limits are those of a search through all of them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.query.combination import combinations

number = st.integers(0, 12).map(lambda n: n / 4.0)
option = st.tuples(number, number, number)
groups = st.lists(st.lists(option, min_size=1, max_size=5), min_size=1, max_size=4)


@given(groups, number.map(lambda n: 3 * n), number.map(lambda n: 3 * n))
@settings(max_examples=200, deadline=None)
def test_best_combination_is_that_of_all(
    written: list[list[tuple[float, float, float]]], first: float, second: float
) -> None:
    arrays = [(np.array(g)[:, :2], np.array(g)[:, 2]) for g in written]
    found = combinations(arrays, (first, second))
    sums = [np.sum(chosen, axis=0) for chosen in product(*written)]
    within = [s for s in sums if s[0] <= first and s[1] <= second]
    assert found.count == len(sums)
    best = found.best((first, second))
    if not within:
        assert best is None
        return
    assert best is not None
    value, cost, size = min((-s[2], s[0], s[1]) for s in within)
    assert found.value[best] == pytest.approx(-value)
    assert found.resources[best].tolist() == pytest.approx([cost, size])
    again = np.sum(
        [w[i] for w, i in zip(written, found.chosen[best].tolist(), strict=True)], axis=0
    )
    assert again.tolist() == pytest.approx([cost, size, -value])


@given(groups, number, number.map(lambda n: 3 * n))
@settings(max_examples=100, deadline=None)
def test_least_budget_of_a_value_is_that_of_all(
    written: list[list[tuple[float, float, float]]], value: float, second: float
) -> None:
    arrays = [(np.array(g)[:, :2], np.array(g)[:, 2]) for g in written]
    found = combinations(arrays)
    sums = [np.sum(chosen, axis=0) for chosen in product(*written)]
    costs = [s[0] for s in sums if s[1] <= second and s[2] >= value]
    assert found.least(0, value, (0.0, second)) == pytest.approx(min(costs, default=np.inf))
