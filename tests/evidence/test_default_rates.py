"""Intervals of fp32 operators, from leave-one-GPU-out errors."""

from __future__ import annotations

import numpy as np
import pytest

from planning.calibrate.kernels import band_by_rows, unit_of
from simulators.evidence.default_rates import band_of_gpus, bands_by_sheet, measured_gpus
from simulators.evidence.intervals import WIDEST

NAMES = [calibration.name for calibration in measured_gpus()]


def test_interval_covers_ninety_percent_with_gpu_level_bias() -> None:
    draw = np.random.default_rng(0)
    middles = (np.arange(20) + 0.5) / 20

    def sampled_gpu() -> np.ndarray:
        return draw.normal(0.0, 0.1) + draw.normal(0.0, 0.1, 400)

    held = []
    for _ in range(300):
        band = band_of_gpus([np.quantile(sampled_gpu(), middles) for _ in range(8)])
        new = np.exp(sampled_gpu())
        held.append(np.mean((band.lo[0] <= new) & (new <= band.hi[0])))
    assert np.mean(held) == pytest.approx(0.9, abs=0.05)


def test_own_rows_narrow_the_interval_of_a_gpu() -> None:
    near, far = (band_by_rows("linear", np.full(10, off), NAMES) for off in (0.01, 0.3))
    assert far.lo[0] < near.lo[0] < 1.0 < near.hi[0] < far.hi[0]
    none = band_by_rows("linear", np.zeros(0), NAMES)
    assert near.hi[0] < none.hi[0]
    assert unit_of(np.zeros(0), [0.2, 0.2]) == pytest.approx(0.2)
    assert band_by_rows("no such class", np.zeros(0), NAMES) == WIDEST


def test_every_kernel_class_has_a_leave_one_gpu_out_interval() -> None:
    classes = {label for calibration in measured_gpus() for label in calibration.rates}
    assert set(bands_by_sheet(NAMES)) == classes
    others = bands_by_sheet([name for name in NAMES if name != "mi210"])
    assert others["bmm"] != bands_by_sheet(NAMES)["bmm"]
