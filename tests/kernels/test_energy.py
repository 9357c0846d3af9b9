"""Power lies between idle and the limit, rises with activity and matches measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import floats, sampled_from

from simulators.catalog.gpu import Gpu, load_gpu, what_if, with_clock_share
from simulators.evidence.lookup import calibrations
from simulators.kernels.energy import active_idle_w, energy_j, idle_w_of, power_model_of, power_w
from simulators.kernels.price import price
from simulators.workload.operators import Elementwise, Gemm, Norm
from tests.calibrations import fitted_tables

GPUS = ("h200_sxm", "b200_sxm", "h100_sxm", "a100_sxm", "mi210")


def product(n: float, dtype: str = "fp16") -> Gemm:
    return Gemm(name="g", m=n, n=n, k=n, dtype=dtype)


@given(name=sampled_from(GPUS), n=floats(1.0, 16384.0), scale=floats(0.1, 100.0))
def test_power_lies_between_idle_and_the_power_limit(name: str, n: float, scale: float) -> None:
    gpu = load_gpu(name)
    for operator in (product(n), Norm(name="n", rows=n, cols=n), Elementwise(name="e", elements=n)):
        latency_s = scale * price(operator, gpu).latency_s
        assert idle_w_of(gpu) <= power_w(operator, gpu, latency_s) <= gpu.tdp_w


@given(name=sampled_from(GPUS), n=floats(1.0, 16384.0), slower=floats(1.0, 10.0))
def test_same_work_in_more_time_draws_less_power(name: str, n: float, slower: float) -> None:
    gpu = load_gpu(name)
    operator = product(n)
    latency_s = price(operator, gpu).latency_s
    assert power_w(operator, gpu, slower * latency_s) <= power_w(operator, gpu, latency_s)


def test_energy_is_power_times_time() -> None:
    gpu = load_gpu("h200_sxm")
    operator = product(4096.0)
    latency_s = price(operator, gpu).latency_s
    watts = power_w(operator, gpu, latency_s)
    assert energy_j(operator, gpu, latency_s) == pytest.approx(watts * latency_s)


def test_large_gemm_reaches_the_power_limit() -> None:
    gpu = load_gpu("h200_sxm")
    operator = product(16384.0, "bf16")
    watts = float(power_w(operator, gpu, price(operator, gpu).latency_s))
    assert 0.9 * gpu.tdp_w < watts <= gpu.tdp_w


def test_power_model_transfers_from_the_nearest_metered_gpu_without_shapes() -> None:
    own, transferred = power_model_of(load_gpu("h200_sxm")), power_model_of(load_gpu("h100_sxm"))
    assert own.shapes
    assert transferred == replace(own, shapes={})
    gpu = load_gpu("h100_sxm")
    rest_w = idle_w_of(gpu)
    assert active_idle_w(gpu) == pytest.approx(rest_w + own.active_idle * (gpu.tdp_w - rest_w))
    assert set(calibrations("power")) == {"h200_sxm", "b200_sxm"}


def test_power_calibration_names_the_fitted_tables() -> None:
    files = [file for found in calibrations("power").values() for file in found]
    tables = fitted_tables(files)
    assert len(tables) == 3
    assert all(len(digest) == 64 for _, digest in tables)


def joules(operator: Gemm | Elementwise, gpu: Gpu) -> float:
    return float(energy_j(operator, gpu, price(operator, gpu).latency_s))


def test_what_if_gpu_keeps_energy_per_flop_and_byte() -> None:
    """It is done sooner, and draws as much more while it is at work."""
    real = load_gpu("h100_sxm")
    large, half = (what_if(real, sm_scale=scale) for scale in (2.0, 0.5))
    work = product(16384.0, "bf16")
    for device in (large, half):
        assert joules(work, device) == pytest.approx(joules(work, real), rel=0.25)
    wide = what_if(real, bandwidth_scale=2.0)
    stream = Elementwise(name="e", elements=1e9)
    dynamic = joules(stream, real) - active_idle_w(real) * float(price(stream, real).latency_s)
    wider = joules(stream, wide) - active_idle_w(wide) * float(price(stream, wide).latency_s)
    assert wider == pytest.approx(dynamic, rel=0.1)


def test_energy_falls_with_a_lower_clock() -> None:
    real, work = load_gpu("h100_sxm"), product(8192.0, "bf16")
    slow, fast = (what_if(real, clock_scale=scale) for scale in (0.8, 1.2))
    assert joules(work, slow) < joules(work, real) < joules(work, fast)
    assert active_idle_w(slow) < active_idle_w(real) < active_idle_w(fast)


def test_idle_power_grows_with_the_number_of_sms() -> None:
    real = load_gpu("h100_sxm")
    small = product(256.0, "bf16")
    assert joules(small, what_if(real, sm_scale=2.0)) > joules(small, real)
    held = with_clock_share(real, 0.7)
    assert active_idle_w(with_clock_share(what_if(real, sm_scale=1.0), 0.7)) == active_idle_w(held)
