"""Error layers sum to the stated interval; switching a layer off narrows the interval."""

from __future__ import annotations

import pytest

from docs.error_layers import LAYERS, band_of, error_layers
from simulators.serving.deployment import deployment_of
from simulators.serving.measured_deployments import latency_intervals
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import TYPICAL, pass_intervals


@pytest.mark.parametrize("runtime", ["vllm", "graphs"])
@pytest.mark.parametrize("gpu", ["h100_sxm", "mi300x"])
def test_layers_sum_to_the_band(runtime: str, gpu: str) -> None:
    point = ServingPoint(model="llama2_70b", gpu=gpu, tp=8, runtime=runtime)
    replica = deployment_of(point).hardware.replica
    stated = latency_intervals(runtime, pass_intervals(replica))
    for metric, (_, step) in zip(("ttft", "tpot"), TYPICAL, strict=True):
        squares = error_layers(replica, step, metric)
        assert band_of(squares) == pytest.approx(stated[metric])
        for layer in LAYERS:
            low, high = band_of(squares, layer)
            assert stated[metric][0] <= low <= 1.0 <= high <= stated[metric][1]
