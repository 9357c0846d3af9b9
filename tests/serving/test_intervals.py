"""Deployments come with intervals, wider the less was measured of the engine and of the GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulators.serving.answer.error_bands import widened
from simulators.serving.answer.metrics import WITH_BAND
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate

POINT = ServingPoint(
    model="llama3_1_8b", gpu="h100_sxm", scheduler="vllm_v1", runtime="vllm", requests=40,
    dtype="bf16",
)  # fmt: skip


def test_a_measured_framework_states_intervals() -> None:
    metrics = simulate(POINT)
    for name in WITH_BAND:
        value = getattr(metrics, name)
        low, high = getattr(metrics, f"{name}_lo"), getattr(metrics, f"{name}_hi")
        assert 0.25 * value < low < value < high < 4.0 * value
    several = simulate(replace(POINT, seeds=2))
    assert several.ttft_mean_s_lo is not None


def width(point: ServingPoint) -> float:
    """Return how far the interval of the mean TPOT reaches, as a ratio of its ends."""
    metrics = simulate(point)
    assert metrics.tpot_mean_s_lo is not None
    assert metrics.tpot_mean_s_hi is not None
    return metrics.tpot_mean_s_hi / metrics.tpot_mean_s_lo


def test_an_engine_nobody_measured_is_as_uncertain_as_the_worst_known_one() -> None:
    known = [width(replace(POINT, runtime=name)) for name in ("vllm", "sglang", "trtllm")]
    assert width(replace(POINT, runtime="graphs")) >= 0.99 * max(known)


def test_a_gpu_nobody_measured_is_less_certain() -> None:
    assert width(replace(POINT, gpu="mi300x")) > 1.2 * width(POINT)


def test_a_band_widens_by_what_intervals_reach_further_and_never_narrows() -> None:
    assert widened((0.8, 1.25), (0.9, 1.1), (0.95, 1.05)) == pytest.approx((0.8, 1.25))
    assert widened((1.0, 1.0), (1.0, 1.0), (0.5, 2.0)) == pytest.approx((0.5, 2.0))
    low, high = widened((0.8, 1.25), (0.9, 1.1), (0.5, 2.0))
    assert math.log(low) ** 2 == pytest.approx(
        math.log(0.8) ** 2 + math.log(0.5) ** 2 - math.log(0.9) ** 2
    )
    assert math.log(high) ** 2 == pytest.approx(
        math.log(1.25) ** 2 + math.log(2.0) ** 2 - math.log(1.1) ** 2
    )


def test_a_percentile_is_less_certain_than_a_mean() -> None:
    metrics = simulate(POINT)
    for kind in ("ttft", "tpot"):
        for end, sign in (("lo", -1.0), ("hi", 1.0)):
            tail, mean = (
                getattr(metrics, f"{kind}_{of}_s_{end}") / getattr(metrics, f"{kind}_{of}_s")
                for of in ("p99", "mean")
            )
            assert sign * math.log(tail) > sign * math.log(mean)
