"""Cases with a known answer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulators.catalog.gpu import load_gpu
from simulators.kernels.energy import energy_j, power_w
from simulators.kernels.families.gemm import convolution_flops, output_size
from simulators.kernels.price import flops, moved_bytes, price, roofline_s
from simulators.kernels.tiling import Tile, TileRates, tile_seconds
from simulators.workload.operators import (
    Attention,
    Convolution,
    Elementwise,
    Gemm,
    GroupedGemm,
    Norm,
    active_experts,
)

MACHINE = TileRates(
    sm_count=100,
    flops_per_s_per_sm=1e12,
    load_bytes_per_s_per_sm=1e18,
    hbm_bytes_per_s=1e18,
    l2_bytes=1e9,
    a_bytes=4.0,
    b_bytes=4.0,
    c_bytes=4.0,
    tail=1.0,
    prologue=0.0,
    k_step=1.0,
)
ONE_TILE = (Tile(128, 128, 1.0),)


def seconds(m: float, n: float, k: float, batch: float = 1.0, **machine: float) -> float:
    sizes = (np.array([x]) for x in (m * batch, n, k, batch))
    return float(tile_seconds(*sizes, ONE_TILE, dataclasses.replace(MACHINE, **machine))[0])


def test_one_full_wave_takes_one_tile_time() -> None:
    # 100 tiles of 128 x 128 x 1000 on 100 SMs: 2 * 128 * 128 * 1000 FLOPs each, at 1e12 per second.
    assert seconds(1280.0, 1280.0, 1000.0) == pytest.approx(2 * 128 * 128 * 1000 / 1e12)


def test_one_extra_tile_takes_two_waves() -> None:
    assert seconds(1281.0, 1280.0, 1000.0) == pytest.approx(2 * seconds(1280.0, 1280.0, 1000.0))


def test_calibrated_tail_factor_halves_the_last_wave() -> None:
    # 110 tiles on 100 SMs: half of them waves in full (2), half as work is (1.1).
    tile_s = 2 * 128 * 128 * 1000 / 1e12
    assert seconds(1408.0, 1280.0, 1000.0, tail=0.5) == pytest.approx(1.55 * tile_s)


def test_bandwidth_bound_gemm_takes_bytes_over_bandwidth() -> None:
    moved = 4.0 * (1 * 4096 + 4096 * 4096 + 1 * 4096)
    assert seconds(1.0, 4096.0, 4096.0, hbm_bytes_per_s=1e6) == pytest.approx(moved / 1e6)


def test_large_square_gemm_is_near_peak() -> None:
    priced = price(Gemm(name="g", m=8192, n=8192, k=8192, dtype="bf16"), load_gpu("h100_sxm"))
    mfu = 2 * 8192**3 / (989e12 * float(priced.latency_s))
    assert 0.5 < mfu < 0.9


def test_decode_attention_reads_the_cache_once() -> None:
    # 64 requests of 4,096 tokens, 8 KV heads of 128 numbers of 2 bytes, keys and values.
    step = Attention(
        name="a",
        phase="decode",
        requests=64.0,
        query_tokens=64.0,
        pairs=64 * 4096.0,
        kv_tokens=64 * 4096.0,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
    )
    cache_bytes = 64 * 4096 * 8 * 128 * 2 * 2
    gpu = load_gpu("h100_sxm")
    assert float(moved_bytes(step)) == pytest.approx(cache_bytes, rel=0.01)
    assert float(price(step, gpu).latency_s) >= cache_bytes / gpu.hbm_bytes_per_s


def test_causal_prefill_counts_half_the_square() -> None:
    prompt = Attention(
        name="a",
        phase="prefill",
        requests=1.0,
        query_tokens=1000.0,
        pairs=1000 * 1001 / 2,
        kv_tokens=1000.0,
        heads=2.0,
        kv_heads=1.0,
        head_dim=64.0,
    )
    assert float(flops(prompt)) == 4 * 64 * 2 * 500_500


def test_one_token_activates_top_k_experts_and_many_tokens_activate_all() -> None:
    mixture = GroupedGemm(name="up", tokens=np.array([1.0, 1e6]), n=1, k=1, experts=64, top_k=6.0)
    assert active_experts(mixture) == pytest.approx([6.0, 64.0])


def test_strided_convolution_shrinks_the_image() -> None:
    stem = Convolution(
        name="stem",
        batch=2,
        in_channels=3,
        out_channels=64,
        kernel_size=7,
        input_size=224,
        stride=2,
        padding=3,
    )
    assert float(output_size(stem)) == 112.0
    assert float(convolution_flops(stem)) == 2 * 2 * 112 * 112 * 64 * 3 * 49


def test_long_rows_beyond_l2_are_read_again() -> None:
    gpu = load_gpu("v100_pcie")
    short = Norm(name="s", rows=8192.0 * 16, cols=1024.0, kind="softmax", dtype="fp32")
    long = Norm(name="s", rows=8192.0, cols=16384.0, kind="softmax", dtype="fp32")
    assert float(moved_bytes(short)) == float(moved_bytes(long))
    ratio = float(price(long, gpu).latency_s / price(short, gpu).latency_s)
    assert 1.7 < ratio < 2.2  # three reads and a write instead of one and one


def test_streaming_kernel_takes_bytes_over_bandwidth() -> None:
    add = Elementwise(name="add", elements=1e9, reads=2.0, dtype="fp32")
    gpu = load_gpu("a100_pcie_40gb")
    assert float(roofline_s(add, gpu)) == pytest.approx(12e9 / gpu.hbm_bytes_per_s)
    assert 1.0 < float(price(add, gpu).latency_s) / float(roofline_s(add, gpu)) < 1.3


def test_kernel_power_lies_between_idle_and_the_limit() -> None:
    gpu = load_gpu("h100_sxm")
    for operator in (
        Gemm(name="g", m=8192.0, n=8192.0, k=8192.0, dtype="bf16"),
        Gemm(name="g", m=1.0, n=128.0, k=128.0, dtype="bf16"),
        Elementwise(name="add", elements=1e9, reads=2.0),
    ):
        latency_s = price(operator, gpu).latency_s
        watts = float(power_w(operator, gpu, latency_s))
        assert gpu.idle_w is not None
        assert gpu.idle_w <= watts <= gpu.tdp_w
        assert float(energy_j(operator, gpu, latency_s)) == pytest.approx(watts * float(latency_s))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_batched_gemm_is_never_faster_than_a_single_gemm(dtype: str) -> None:
    sizes = np.array([16.0, 300.0, 4096.0])
    one = Gemm(name="g", m=sizes, n=sizes, k=np.array([60_000.0, 300.0, 64.0]), dtype=dtype)
    gpu = load_gpu("p100_pcie")
    two = dataclasses.replace(one, batch=2.0)
    assert np.all(price(two, gpu).latency_s >= price(one, gpu).latency_s)
