"""Residual corrections: none from scatter, all of smooth trends, none far away."""

from __future__ import annotations

import numpy as np

from planning.calibrate.transfer import interpolated

LINE = np.linspace(0.0, 20.0, 41)[:, None]
SEEN = np.arange(0, 41, 4)
NO_TREND = np.zeros((LINE.size, 0))


def test_smooth_residuals_are_interpolated() -> None:
    true = 0.3 * np.sin(LINE[:, 0] / 4.0)
    assert np.abs(interpolated(LINE, NO_TREND, SEEN, true[SEEN]) - true).max() < 0.03


def test_uncorrelated_residuals_give_no_correction() -> None:
    missed = np.where(np.arange(SEEN.size) % 2, 0.1, -0.1)
    assert not interpolated(LINE, NO_TREND, SEEN, missed).any()


def test_correction_vanishes_far_from_measured_sizes() -> None:
    far = np.concatenate([LINE, [[500.0]]])
    no_trend = np.zeros((far.size, 0))
    assert abs(interpolated(far, no_trend, SEEN, np.full(SEEN.size, 0.3))[-1]) < 1e-9


def test_linear_trend_of_residuals_is_extrapolated() -> None:
    turns = np.where(np.arange(LINE.size) % 3, 0.2, -0.2)
    assert np.abs(interpolated(LINE, turns[:, None], SEEN, turns[SEEN]) - turns).max() < 0.02


def test_single_outlier_does_not_move_other_predictions() -> None:
    level, missed = np.full((LINE.size, 1), 0.2), np.full(SEEN.size, 0.1)
    missed[4] += np.log(2.0)
    assert np.abs(np.delete(interpolated(LINE, level, SEEN, missed), SEEN[4]) - 0.1).max() < 0.05
