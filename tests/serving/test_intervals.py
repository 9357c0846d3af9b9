"""Deployments of measured frameworks come with intervals; others do not."""

from __future__ import annotations

from dataclasses import replace

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
        assert 0.3 * value < low < value < high < 3.0 * value
    several = simulate(replace(POINT, seeds=2))
    assert several.ttft_mean_s_lo is not None


def test_what_nobody_measured_states_none() -> None:
    metrics = simulate(replace(POINT, runtime="graphs"))
    assert all(getattr(metrics, f"{n}_{end}") is None for n in WITH_BAND for end in ("lo", "hi"))
