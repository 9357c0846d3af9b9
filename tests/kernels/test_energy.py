"""Watts lie between rest and the limit, rise with activity, and follow what meters showed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, sampled_from

from lab.fits.methods.power_meter import meter_features, meter_of, reading_w
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import fitted_digests
from simulators.kernels.energy import energy_j, power_w, resting_w
from simulators.kernels.power_draw import draw_of, power_files
from simulators.kernels.price import price
from simulators.workload.operators import Attention, Elementwise, Gemm, Norm

BOARDS = ("h200_sxm", "b200_sxm", "h100_sxm", "a100_sxm", "mi210")


def product(n: float, dtype: str = "fp16") -> Gemm:
    return Gemm(name="g", m=n, n=n, k=n, dtype=dtype)


@given(name=sampled_from(BOARDS), n=floats(1.0, 16384.0), scale=floats(0.1, 100.0))
def test_watts_lie_between_rest_and_the_limit(name: str, n: float, scale: float) -> None:
    gpu = load_gpu(name)
    for operator in (product(n), Norm(name="n", rows=n, cols=n), Elementwise(name="e", elements=n)):
        latency_s = scale * price(operator, gpu).latency_s
        assert resting_w(gpu) <= power_w(operator, gpu, latency_s) <= gpu.tdp_w


@given(name=sampled_from(BOARDS), n=floats(1.0, 16384.0), slower=floats(1.0, 10.0))
def test_the_same_work_in_more_time_draws_no_more(name: str, n: float, slower: float) -> None:
    gpu = load_gpu(name)
    operator = product(n)
    latency_s = price(operator, gpu).latency_s
    assert power_w(operator, gpu, slower * latency_s) <= power_w(operator, gpu, latency_s)


def test_joules_are_watts_times_seconds() -> None:
    gpu = load_gpu("h200_sxm")
    operator = product(4096.0)
    latency_s = price(operator, gpu).latency_s
    watts = power_w(operator, gpu, latency_s)
    assert energy_j(operator, gpu, latency_s) == pytest.approx(watts * latency_s)


def test_a_large_product_runs_a_board_to_its_limit() -> None:
    gpu = load_gpu("h200_sxm")
    operator = product(16384.0, "bf16")
    watts = float(power_w(operator, gpu, price(operator, gpu).latency_s))
    assert 0.9 * gpu.tdp_w < watts <= gpu.tdp_w


def test_boards_of_one_architecture_share_their_parts_and_others_have_chosen_ones() -> None:
    assert draw_of(load_gpu("h100_sxm")) == draw_of(load_gpu("h200_sxm"))
    assert draw_of(load_gpu("v100_pcie")).awake == 0.0
    assert {file.stem for file in power_files()} == {"h200_sxm", "b200_sxm"}


def test_a_meter_shows_less_of_short_kernels_than_they_draw() -> None:
    gpu: Gpu = load_gpu("h200_sxm")
    bend = meter_of(gpu, "gemm_bf16")
    assert bend is not None
    operator = Gemm(name="g", m=np.array([1.0, 4096.0]), n=4096.0, k=4096.0, dtype="bf16")
    latency_s = np.array([8e-6, 2.5e-4])
    draw = power_w(operator, gpu, latency_s)
    shown = reading_w(bend, operator, latency_s, draw)
    assert shown[0] < 0.9 * draw[0]
    assert shown[1] == pytest.approx(draw[1], rel=0.1)


def test_no_meter_is_made_up_for_a_board_nobody_metered() -> None:
    assert meter_of(load_gpu("h100_sxm"), "gemm_bf16") is None


def test_features_of_a_meter_are_finite_for_products_and_attention() -> None:
    decode = Attention(
        name="a", phase="decode", requests=np.array([1.0, 64.0]),
        query_tokens=np.array([1.0, 64.0]),
        pairs=np.array([10.0, 640.0]), kv_tokens=np.array([10.0, 640.0]), heads=32.0, kv_heads=8.0,
        head_dim=128.0,
    )  # fmt: skip
    seconds = np.array([1e-5, 1e-4])
    assert np.isfinite(meter_features(decode, seconds)).all()
    assert np.isfinite(meter_features(product(8.0), seconds)).all()


def test_a_calibration_knows_the_tables_it_rests_on() -> None:
    digests = fitted_digests(power_files())
    assert len(digests) == 3
    assert all(len(digest) == 64 for digest in digests)
