"""Shapley values, and shares of a difference that meet measurements."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.query.attribution import UNEXPLAINED, Mixing, attributed
from sweeper.query.shapley import shapley_values

NUMBERS = st.lists(st.floats(-5.0, 5.0), min_size=16, max_size=16)
NAMES = ("a", "b", "c", "d")


def game(values: list[float]) -> dict[frozenset[str], float]:
    return {
        frozenset(name for place, name in enumerate(NAMES) if number >> place & 1): value
        for number, value in enumerate(values)
    }


@given(NUMBERS)
def test_shares_add_up_to_the_whole_difference(values: list[float]) -> None:
    known = game(values)
    shares = shapley_values(NAMES, lambda taken: {"s": known[frozenset(taken)]})
    whole = known[frozenset(NAMES)] - known[frozenset()]
    assert math.fsum(share["s"] for share in shares.values()) == pytest.approx(whole, abs=1e-9)


@given(NUMBERS)
def test_a_group_without_effect_has_no_share(values: list[float]) -> None:
    known = game(values)
    shares = shapley_values(NAMES, lambda taken: {"s": known[frozenset(taken) - {"c"}]})
    assert shares["c"]["s"] == pytest.approx(0.0, abs=1e-9)


@given(NUMBERS)
def test_groups_of_equal_effect_have_equal_shares(values: list[float]) -> None:
    known = game(values)

    def alike(taken: Collection[str]) -> dict[str, float]:
        return {"s": known[frozenset(NAMES[: len(taken)])]}

    shares = shapley_values(NAMES, alike)
    assert [shares[name]["s"] for name in NAMES] == pytest.approx([shares["a"]["s"]] * 4)


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(0.0, 1.0))
def test_shares_and_the_rest_meet_the_measured_difference(
    before: float, after: float, width: float
) -> None:
    mixing = Mixing(
        groups=("a", "b"),
        run=lambda taken: {"s": 2.0 + 3.0 * ("a" in taken) - 1.0 * ("b" in taken)},
        half_widths={"s": width},
    )
    [one] = attributed(mixing, [{"s": before}, {"s": after}])
    assert one.difference == pytest.approx(after - before)
    if abs(math.log(after / before) - math.log(4.0 / 2.0)) <= width:
        assert one.shares[UNEXPLAINED] == pytest.approx(0.0, abs=1e-9)


def test_a_prediction_that_is_as_measured_leaves_nothing_unexplained() -> None:
    mixing = Mixing(groups=("a",), run=lambda taken: {"s": 3.0 if taken else 2.0})
    [one] = attributed(mixing, [{"s": 4.0}, {"s": 6.0}])  # both twice the prediction
    assert dict(one.shares) == pytest.approx({"a": 2.0, UNEXPLAINED: 0.0})


def test_a_prediction_is_compared_with_a_log_alone() -> None:
    mixing = Mixing(groups=("load",), run=lambda taken: {"s": 3.0 if taken else 2.0})
    [one] = attributed(mixing, [{}, {"s": 7.0}])
    assert dict(one.shares) == pytest.approx({"load": 1.0, UNEXPLAINED: 4.0})


def test_the_unexplained_part_counts_for_the_groups_where_it_likely_lies() -> None:
    mixing = Mixing(groups=["a"], run=lambda taken: {"s": 3.0 if taken else 2.0})
    known = Mixing(groups=mixing.groups, run=mixing.run, remainder={"b": 0.75, "a": 0.25})
    for one, first in ((mixing, UNEXPLAINED), (known, "b")):
        [found] = attributed(one, [{"s": 2.0}, {"s": 9.0}])
        assert found.ranked[0] == first
        assert math.fsum(found.likely.values()) == pytest.approx(7.0)
        assert found.shares[UNEXPLAINED] > 0.0
