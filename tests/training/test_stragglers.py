"""Stragglers: the slowest of many GPUs, and published slowdowns of production jobs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from simulators.core.columns import batch_of
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR
from simulators.training.stragglers import MIDDLES, production_slowdown, slowest, slowest_mean

POINT = {"model": "llama3_1_8b", "gpu": "h100_sxm", "batch": 256, "sequence": 4096, "tp": 2}


def row(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = SIMULATOR.evaluate(
        batch_of(TrainingPoint, {**POINT, **given})
    ).to_pylist()[0]
    assert found["status"] == "ok", found["reason"]
    return found


def test_expected_slowest_of_two_and_three_is_that_of_order_statistics() -> None:
    counts, one = np.array([1.0, 2.0, 3.0]), np.ones(3)
    root = math.sqrt(math.pi)
    expected = [0.0, 1.0 / root, 1.5 / root]  # of normal draws
    np.testing.assert_allclose(slowest_mean(counts, one), expected, atol=2e-3)


def test_expected_slowest_lies_above_its_median_and_grows_with_gpus() -> None:
    counts = np.array([8.0, 128.0, 16384.0])
    mean, median = slowest_mean(counts, np.ones(3)), slowest(counts, np.ones(3), 0.5)
    assert (mean > median).all()
    assert (np.diff(mean) > 0.0).all()


def test_production_jobs_have_the_published_shares() -> None:
    # 42.5 % slower than 1.1; 10 % waste 21.3 % or more; 1 % waste 45 % or more.
    slowdowns = production_slowdown(np.array([0.575, 0.90, 0.99]))
    np.testing.assert_allclose(slowdowns, [1.1, 1.0 / 0.787, 1.0 / 0.55], rtol=1e-3)


def test_mean_waste_is_near_the_published_one_that_was_not_used() -> None:
    waste = float((1.0 - 1.0 / production_slowdown(MIDDLES)).mean())
    assert waste == pytest.approx(0.104, rel=0.1)


def test_production_scales_the_even_step_and_needs_as_many_gpus_as_its_jobs() -> None:
    small, large = (row(dp=dp, stragglers="production") for dp in (8, 64))
    even_s = large["step_s"] - large["straggler_s"]
    assert large["step_p50_s"] / even_s == pytest.approx(1.0803, rel=1e-3)
    assert large["step_p50_s"] < large["step_mean_s"] < large["step_p95_s"]
    assert small["step_mean_s"] is None


def test_spread_of_gpus_is_the_default() -> None:
    found = row(dp=64, gpu_spread=0.02)
    working_s = found["compute_s"] + found["bubble_s"]
    even_s = found["step_s"] - found["straggler_s"]
    behind = float(slowest_mean(np.array([128.0]), np.array([0.02]))[0])
    assert found["step_mean_s"] == pytest.approx(even_s + behind * working_s)
