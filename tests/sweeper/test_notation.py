"""The axis notation has the same meaning in a file and in an override."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulators.core.errors import UserError
from sweeper.space.axes import Scalar, values_of

WHOLE, REAL, WORD, TRUTH = pa.int64(), pa.float64(), pa.string(), pa.bool_()


def values(written: Any, kind: pa.DataType = WHOLE, *, nullable: bool = False) -> list[Scalar]:
    return list(values_of("tp", written, kind, nullable=nullable))


@given(low=st.integers(-1000, 1000), steps=st.integers(0, 100))
def test_integer_range_includes_both_ends(low: int, steps: int) -> None:
    assert values(f"{low}..{low + steps}") == list(range(low, low + steps + 1))


@given(low=st.integers(0, 40), more=st.integers(0, 20))
def test_powers_of_two_double_between_the_ends(low: int, more: int) -> None:
    found = values(f"pow2 {2**low}..{2 ** (low + more)}")
    assert found == [2**e for e in range(low, low + more + 1)]


@given(low=st.integers(1, 10**6), high=st.integers(1, 10**6))
def test_powers_of_two_stay_between_the_ends(low: int, high: int) -> None:
    assume(low <= high)
    expected = [2**e for e in range(21) if low <= 2**e <= high]
    if expected:
        assert values(f"pow2 {low}..{high}") == expected
    else:
        with pytest.raises(UserError, match="no power of two"):
            values(f"pow2 {low}..{high}")


@given(
    low=st.floats(1e-3, 1e3),
    high=st.floats(1e-3, 1e6),
    count=st.integers(2, 50),
    how=st.sampled_from(("lin", "log")),
)
def test_spaced_values_include_both_exact_ends(
    low: float, high: float, count: int, how: str
) -> None:
    low, high = float(f"{low:.6g}"), float(f"{high:.6g}")
    assume(high > low * 1.001)
    found = values(f"{low!r}..{high!r} {how} {count}", REAL)
    assert found[0] == low
    assert found[-1] == high
    assert len(found) == count
    assert all(a < b for a, b in itertools.pairwise(found))
    if how == "log":
        ratio = (high / low) ** (1 / (count - 1))
        steps = [b / a for a, b in itertools.pairwise(found)]
    else:
        ratio = (high - low) / (count - 1)
        steps = [b - a for a, b in itertools.pairwise(found)]
    assert steps == pytest.approx([ratio] * (count - 1), rel=1e-5)


def test_logarithmic_values_are_rounded_when_near_round_numbers() -> None:
    found = values("0.5..32 log 13", REAL)
    assert [v for v in found if v == int(v)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_spaced_integers_are_rounded_and_unique() -> None:
    assert values("1..1000 log 4") == [1, 10, 100, 1000]
    assert values("1..3 lin 9") == [1, 2, 3]


@given(number=st.integers(-(2**63) + 1, 2**63 - 1))
def test_large_integer_keeps_all_digits(number: int) -> None:
    assert values(number) == [number]


@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_number_is_equal_in_file_and_override(number: float) -> None:
    assert values(number, REAL) == [number] == values(repr(number), REAL)


def test_negative_zero_equals_zero() -> None:
    assert math.copysign(1.0, values([-0.0], REAL)[0]) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "kind", "expected"),
    [
        (8, WHOLE, [8]),
        ("8", WHOLE, [8]),
        (8.0, WHOLE, [8]),
        ([1, 2], REAL, [1.0, 2.0]),
        ("1e3", REAL, [1000.0]),
        ("1..3", REAL, [1.0, 2.0, 3.0]),
        (" 1 .. 3 ", WHOLE, [1, 2, 3]),
        ("-2..-1", WHOLE, [-2, -1]),
        ("5..5", WHOLE, [5]),
        ([True, False], TRUTH, [True, False]),
        ("1..3", WORD, ["1..3"]),  # a name may look like anything
        (["a", 7], WORD, ["a", "7"]),
    ],
)
def test_axis_notation_is_parsed(written: Any, kind: pa.DataType, expected: list[Scalar]) -> None:
    found = values(written, kind)
    assert found == expected
    assert [type(v) for v in found] == [type(v) for v in expected]


def test_null_is_a_value_of_optional_fields() -> None:
    assert values([None, 1.5], REAL, nullable=True) == [None, 1.5]
    assert values("null", REAL, nullable=True) == [None]
    with pytest.raises(UserError, match="cannot be null"):
        values([None], REAL)


@pytest.mark.parametrize(
    ("written", "kind", "complaint"),
    [
        ([], WHOLE, "has no values"),
        ({"from": 1}, REAL, "is a mapping"),
        ([1, 1], WHOLE, "the value 1 twice"),
        (1.5, WHOLE, "1.5 is not a whole number"),
        ("eight", WHOLE, "'eight' is not a whole number"),
        ("nan", REAL, "is not a number"),
        (float("inf"), REAL, "is not a number"),
        (True, WHOLE, "True is not a whole number"),
        ("yes", TRUTH, "'yes' is not true or false"),
        ([["a"]], WORD, "is not a name"),
        (2**70, WHOLE, "is not a whole number"),
        (1e30, WHOLE, "is not a whole number"),
        ("3..1", WHOLE, "runs backwards; write 1..3"),
        ("0.5..2", REAL, "needs a count, as in '0.5..2 lin 11'"),
        ("0..8 log 3", REAL, "must start above 0"),
        ("pow2 0..8", WHOLE, "must start above 0"),
        ("pow2 5..7", WHOLE, "no power of two"),
        ("1..8 lin 1", WHOLE, "needs 2 to"),
        ("1..8 cubic 3", WHOLE, "cannot read"),
        ("pow2 8", WHOLE, "cannot read"),
        ("1..99999999", WHOLE, "more than 10,000,000 values"),
        ("1..1e999", REAL, "more than a number can hold"),
        ("-1e308..1e308 lin 3", REAL, "more than a number can hold"),
    ],
)
def test_a_mistake_is_explained(written: Any, kind: pa.DataType, complaint: str) -> None:
    with pytest.raises(UserError, match=r"axis 'tp'") as caught:
        values(written, kind)
    assert complaint in str(caught.value)
