"""Pairs that differ in one thing: their direction and size, by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from lab.claims.claim import STATISTICS
from lab.claims.deployments import kind_pairs


def test_two_kinds_are_compared_wherever_all_else_is_alike() -> None:
    alike = ["a", "a", "a", "b", "c", "c"]
    kinds = ["bf16", "fp8", "fp8", "fp8", "bf16", "fp8"]
    theirs = np.array([1.0, 2.0, 8.0, 5.0, 3.0, np.nan])
    ours, measured = kind_pairs(alike, kinds, np.array([2.0, 3.0, 3.0, 1.0, 1.0, 1.0]), theirs)
    assert ours.tolist() == pytest.approx([1.5])
    assert measured.tolist() == pytest.approx([4.0])


def test_a_change_too_small_to_have_a_direction_counts_by_its_size_alone() -> None:
    pairs = pl.DataFrame({"predicted": [1.1, 0.5, 1.0], "measured": [1.2, 1.5, 1.01]})
    wrong, median = (
        pairs.select(STATISTICS[n]("predicted")).item() for n in ("wrong_sign", "median")
    )
    assert wrong == 50.0
    assert median == pytest.approx(100.0 * (1.0 - 1.1 / 1.2))
