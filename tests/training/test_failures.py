"""Failures of a run: goodput and checkpoint intervals as a renewal process."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.training.metrics import HOUR_S, checkpoint_interval_s, goodput_share


def shares(hours: np.ndarray, pause_s: float, restart_s: float) -> np.ndarray:
    like = np.ones_like(hours)
    return goodput_share(
        like, gpu_mtbf_h=hours, checkpoint_s=pause_s * like, restart_s=restart_s * like
    )


@pytest.mark.parametrize("pause_s", [0.0, 30.0, 3000.0])
@pytest.mark.parametrize("restart_s", [0.0, 900.0])
def test_goodput_is_a_share_that_falls_with_more_frequent_failures(
    pause_s: float, restart_s: float
) -> None:
    found = shares(np.logspace(-4, 6, 500), pause_s, restart_s)
    assert (found > 0.0).all()
    assert (found <= 1.0).all()
    assert (np.diff(found) >= -1e-15).all()


def test_interval_is_youngs_where_checkpoints_are_short() -> None:
    one = np.ones(1)
    interval = checkpoint_interval_s(one, gpu_mtbf_h=1e4 * one, checkpoint_s=one)
    assert interval == pytest.approx(np.sqrt(2.0 * 1e4 * HOUR_S), rel=1e-3)


def test_no_other_interval_has_a_higher_goodput() -> None:
    between, pause = 3600.0, 200.0
    one = np.ones(1)
    best = checkpoint_interval_s(one, gpu_mtbf_h=one, checkpoint_s=pause * one)[0]
    tried = np.linspace(0.2, 5.0, 481) * best
    share = tried / (between * np.expm1((tried + pause) / between))
    assert share.max() == pytest.approx(shares(one, pause, 0.0)[0], rel=1e-6)
    assert tried[share.argmax()] == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize("hours", [3.0, 0.25, 0.1])
def test_goodput_is_that_of_drawn_failures(hours: float) -> None:
    """Intervals end by a checkpoint or by a failure; restarts that fail begin again."""
    pause, restart, between = 60.0, 300.0, hours * HOUR_S
    one = np.ones(1)
    work = checkpoint_interval_s(one, gpu_mtbf_h=hours * one, checkpoint_s=pause * one)[0]
    random = np.random.default_rng(7)
    spent, done, needed = 0.0, 0, [work + pause]
    while done < 4000:
        length = needed[-1]
        failure = random.exponential(between)
        spent += min(failure, length)
        if failure < length:
            needed.append(restart)
            continue
        if len(needed) == 1:
            done += 1
        needed = [work + pause]
    assert done * work / spent == pytest.approx(shares(hours * one, pause, restart)[0], rel=0.05)
