"""Choices under a latency limit, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lab.claims.decisions import _outcome, limits, probabilities

WORTH = np.array([10.0, 8.0, 4.0])
MEETS = np.array([False, True, True])


def test_a_limit_lies_between_two_measured_latencies() -> None:
    measured_s = np.array([1.0, 4.0, 16.0, 16.0])
    assert limits(measured_s, (0.25, 0.75)) == pytest.approx([2.0, 8.0])
    assert not set(limits(measured_s, (0.1, 0.5, 0.9))) & set(measured_s.tolist())


def test_designs_of_one_latency_have_no_limit() -> None:
    assert limits(np.array([3.0, 3.0]), (0.5,)) == []


@pytest.mark.parametrize(
    ("expected", "figures"),
    [
        ([9.0, 8.0, 4.0], {"unanswered": 0.0, "breaks": 100.0, "loss": None}),
        ([1.0, 8.0, 9.0], {"unanswered": 0.0, "breaks": 0.0, "loss": 50.0}),
        ([1.0, 9.0, 8.0], {"unanswered": 0.0, "breaks": 0.0, "loss": 0.0}),
    ],
)
def test_a_choice_breaks_the_limit_or_loses_throughput(
    expected: list[float], figures: dict[str, float | None]
) -> None:
    every = np.ones(3, bool)
    assert _outcome(every, np.array(expected), worth=WORTH, meets=MEETS) == figures


def test_without_a_design_that_may_be_chosen_there_is_no_answer() -> None:
    outcome = _outcome(np.zeros(3, bool), WORTH, worth=WORTH, meets=MEETS)
    assert outcome == {"unanswered": 100.0, "breaks": None, "loss": None}


def test_a_limit_at_the_prediction_is_met_with_probability_one_half() -> None:
    chances = probabilities(np.array([1.0, 2.0]), np.array([[0.5, 2.0]] * 2), 1.0)
    assert chances == pytest.approx([0.5, 0.05])
