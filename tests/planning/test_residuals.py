"""What is carried over from misses: nothing from scatter, all of what reaches, and not far."""

from __future__ import annotations

import numpy as np

from planning.calibrate.transfer import interpolated

LINE = np.linspace(0.0, 20.0, 41)[:, None]
SEEN = np.arange(0, 41, 4)
NO_TREND = np.zeros((LINE.size, 0))


def test_misses_that_reach_are_found_between_the_sizes_looked_at() -> None:
    true = 0.3 * np.sin(LINE[:, 0] / 4.0)
    assert np.abs(interpolated(LINE, NO_TREND, SEEN, true[SEEN]) - true).max() < 0.03


def test_of_misses_that_tell_nothing_of_each_other_nothing_is_said() -> None:
    missed = np.where(np.arange(SEEN.size) % 2, 0.1, -0.1)
    assert not interpolated(LINE, NO_TREND, SEEN, missed).any()


def test_far_from_all_that_was_looked_at_nothing_is_said() -> None:
    far = np.concatenate([LINE, [[500.0]]])
    no_trend = np.zeros((far.size, 0))
    assert abs(interpolated(far, no_trend, SEEN, np.full(SEEN.size, 0.3))[-1]) < 1e-9


def test_a_trend_that_misses_go_with_is_followed_to_all_sizes() -> None:
    turns = np.where(np.arange(LINE.size) % 3, 0.2, -0.2)
    assert np.abs(interpolated(LINE, turns[:, None], SEEN, turns[SEEN]) - turns).max() < 0.02


def test_one_kernel_that_takes_twice_as_long_moves_no_other() -> None:
    level, missed = np.full((LINE.size, 1), 0.2), np.full(SEEN.size, 0.1)
    missed[4] += np.log(2.0)
    assert np.abs(np.delete(interpolated(LINE, level, SEEN, missed), SEEN[4]) - 0.1).max() < 0.05
