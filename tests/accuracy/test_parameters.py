"""Fitted numbers beside the measured rows that speak for them."""

from __future__ import annotations

import pytest

from docs.calibrations import ENGINES, NETWORKS, TRAINING, kinds

NUMBERS = {kind.what: kind.numbers for kind in kinds()}
ROWS = {kind.what: kind.rows for kind in kinds()}


def test_engines_and_training_have_few_constants() -> None:
    assert NUMBERS[ENGINES] + NUMBERS[TRAINING] <= 60


def test_networks_have_fewer_numbers_than_a_third_of_their_rows() -> None:
    assert NUMBERS[NETWORKS] < ROWS[NETWORKS] / 3


@pytest.mark.parametrize("what", [ENGINES, TRAINING, "intervals of deployments"])
def test_at_least_five_rows_speak_for_one_number(what: str) -> None:
    assert ROWS[what] >= 5 * NUMBERS[what]
