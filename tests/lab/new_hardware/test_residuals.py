"""What is carried over from misses: nothing from scatter, all of what reaches, and not far."""

from __future__ import annotations

import numpy as np

from lab.new_hardware.residuals import carried_over

LINE = np.linspace(0.0, 20.0, 41)[:, None]
SEEN = np.arange(0, 41, 4)


def test_misses_that_reach_are_found_between_the_sizes_looked_at() -> None:
    true = 0.3 * np.sin(LINE[:, 0] / 4.0)
    assert np.abs(carried_over(LINE, SEEN, true[SEEN]) - true).max() < 0.03


def test_of_misses_that_tell_nothing_of_each_other_nothing_is_said() -> None:
    missed = np.where(np.arange(SEEN.size) % 2, 0.1, -0.1)
    assert not carried_over(LINE, SEEN, missed).any()


def test_far_from_all_that_was_looked_at_nothing_is_said() -> None:
    far = np.concatenate([LINE, [[500.0]]])
    assert abs(carried_over(far, SEEN, np.full(SEEN.size, 0.3))[-1]) < 1e-9
