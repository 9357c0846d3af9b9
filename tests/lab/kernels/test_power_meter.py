"""What a meter shows of short kernels is less than they draw."""

from __future__ import annotations

import numpy as np
import pytest

from lab.fits.kernels.power import meter_features, meter_of, reading_w
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.kernels.energy import power_w
from simulators.workload.operators import Attention, Gemm


def test_a_meter_shows_less_of_short_kernels_than_they_draw() -> None:
    gpu: Gpu = load_gpu("h200_sxm")
    correction = meter_of(gpu, "gemm_bf16")
    assert correction is not None
    operator = Gemm(name="g", m=np.array([1.0, 4096.0]), n=4096.0, k=4096.0, dtype="bf16")
    latency_s = np.array([8e-6, 2.5e-4])
    draw = power_w(operator, gpu, latency_s)
    shown = reading_w(correction, operator, latency_s, draw)
    assert shown[0] < 0.9 * draw[0]
    assert shown[1] == pytest.approx(draw[1], rel=0.1)


def test_gpus_without_readings_have_no_meter() -> None:
    assert meter_of(load_gpu("h100_sxm"), "gemm_bf16") is None


def test_features_of_a_meter_are_finite_for_products_and_attention() -> None:
    decode = Attention(
        name="a",
        phase="decode",
        requests=np.array([1.0, 64.0]),
        query_tokens=np.array([1.0, 64.0]),
        pairs=np.array([10.0, 640.0]),
        kv_tokens=np.array([10.0, 640.0]),
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
    )
    product = Gemm(name="g", m=8.0, n=8.0, k=8.0, dtype="fp16")
    seconds = np.array([1e-5, 1e-4])
    assert np.isfinite(meter_features(decode, seconds)).all()
    assert np.isfinite(meter_features(product, seconds)).all()
