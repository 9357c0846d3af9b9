"""Sustained share of the peak on unmeasured GPUs, estimated from measured GPUs."""

from __future__ import annotations

import math

import pytest

from lab.fits.kernels.tensor_cores import Point, line_of
from simulators.catalog.gpu import load_gpu
from simulators.evidence.default_rates import flops_per_j, sheet_bands, sustained_share
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price
from simulators.workload.operators import Gemm


def test_sustained_share_falls_with_peak_flops_per_joule() -> None:
    shares = [sustained_share(load_gpu("b200_sxm"), dtype) for dtype in ("bf16", "fp8", "fp4")]
    assert 1.0 > shares[0] > shares[1] > shares[2] > 0.3
    assert flops_per_j(load_gpu("a100_sxm"), "bf16") == pytest.approx(312 / 400)
    assert sustained_share(load_gpu("a100_sxm"), "bf16") <= 1.0


def test_vendor_factor_follows_measured_gpus_and_widens_the_interval() -> None:
    points = [
        Point("one", name, "bf16", math.log(asked), math.log(0.8 * asked**-0.5))
        for name, asked in (("a", 1.0), ("b", 2.0), ("c", 4.0))
    ]
    line = line_of([*points, Point("other", "d", "fp32", math.log(0.01), math.log(0.5))])
    assert line.share("one", math.log(3.0)) == pytest.approx(0.8 * 3.0**-0.5)
    assert line.share("one", math.log(0.1)) == pytest.approx(0.8)  # no more than the best seen
    assert line.share("other", math.log(4.0)) == pytest.approx(0.8 * 0.5 * 0.5)
    assert line.share("nobody", math.log(4.0)) == pytest.approx(0.4)
    ours, theirs, unknown = (sheet_bands(name)["plain"] for name in ("nvidia", "amd", "nobody"))
    assert all(theirs.lo[i] < ours.lo[i] and theirs.hi[i] > ours.hi[i] for i in range(3))
    assert unknown == theirs


def test_unmeasured_gpu_sustains_the_share_of_the_vendor() -> None:
    """AMD's own figures of hipBLASLt stand near 620 TFLOP/s, which no fit has seen."""
    gpu, side = load_gpu("mi300x"), 8192
    product = Gemm(name="square", m=side, n=side, k=side, dtype="bf16")
    priced = price(product, gpu, profile_of(gpu))
    reached = 2.0 * side**3 / float(priced.latency_s) / 1e12
    assert 560.0 < reached < 700.0
    assert float(priced.lo_s / priced.latency_s) < reached / 884.0
    assert float(priced.hi_s / priced.latency_s) > 1.4


@pytest.mark.parametrize("name", ["a40", "rtx_3090", "mi300x"])
def test_data_sheet_gemm_is_at_most_the_sustained_rate(name: str) -> None:
    gpu, side = load_gpu(name), 8192.0
    seconds = float(price(Gemm(name="large", dtype="fp16", m=side, n=side, k=side), gpu).latency_s)
    assert 2.0 * side**3 / seconds <= 1.02 * sustained_share(gpu, "fp16") * gpu.peak("fp16")
