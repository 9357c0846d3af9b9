"""MLA decode with warp-level MMA: cycles per key, blocks of 64 heads, waves of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.kernels.corrections import LATENT_WIDTH
from simulators.kernels.families.attention import attention_bytes
from simulators.kernels.families.latent_attention import warp_latent_seconds
from simulators.workload.operators import Attention

A100, RTX = load_gpu("a100_sxm"), load_gpu("rtx_pro_6000")
NUMBERS = {
    "start_s": 0.0,
    "start_clocks": 0.0,
    "key_clocks": 100.0,
    "gap_clocks": 50.0,
    "wave_clocks": 0.0,
}


def step(requests: float, keys: float, heads: float = 64.0, kv_dtype: str = "bf16") -> Attention:
    return Attention(
        name="mla_decode",
        phase="decode",
        requests=requests,
        query_tokens=requests,
        pairs=requests * keys,
        kv_tokens=requests * keys,
        context_tokens=requests * keys,
        heads=heads,
        kv_heads=LATENT_WIDTH / (2.0 * 544.0),
        head_dim=544.0,
        latent=True,
        dtype="bf16",
        kv_dtype=kv_dtype,
    )


def seconds(attention: Attention, gpu: Gpu) -> float:
    moved = attention_bytes(attention)
    return float(warp_latent_seconds(attention, gpu, NUMBERS, moved))


def test_single_block_takes_gemm_time_plus_stalls() -> None:
    # 2 x 64 x (576 + 256) FLOPs a key; an A100's SM has 312e12 / (108 x 1.41e9) of them a clock.
    clocks = 2 * 64 * 832 / (312e12 / (108 * 1.41e9)) + 100
    assert seconds(step(1, 8192), A100) == pytest.approx(8192 * clocks / 1.41e9, rel=1e-3)


def test_second_wave_overlaps_half_of_the_first_wave() -> None:
    many = replace(A100, sm_count=64, peak_flops={"bf16": 64 * 1.41e9 * 2048})
    one, two = seconds(step(32, 8192), many), seconds(step(64, 8192), many)
    products = 2 * 64 * 832 / 2048
    assert two / one == pytest.approx(1.0 + (products + 50) / (products + 100), rel=0.02)


def test_heads_up_to_a_tile_are_free() -> None:
    one, tile = (seconds(step(4, 4096, heads), A100) for heads in (1.0, 64.0))
    assert one == pytest.approx(tile, rel=1e-6)
    assert seconds(step(64, 4096, heads=128.0), A100) > seconds(step(64, 4096), A100)


def test_fp8_keys_use_fp8_tensor_cores_where_available() -> None:
    narrow, wide = (step(1, 8192, kv_dtype=dtype) for dtype in ("fp8", "bf16"))
    assert seconds(narrow, RTX) < 0.8 * seconds(wide, RTX)
    assert seconds(narrow, A100) == pytest.approx(seconds(wide, A100), rel=1e-3)


@given(requests=st.integers(1, 2048), keys=st.integers(1, 2**17), heads=st.integers(1, 128))
def test_more_work_is_never_faster(requests: int, keys: int, heads: int) -> None:
    one = seconds(step(requests, keys, heads), A100)
    more = (step(requests + 1, keys, heads), step(requests, keys + 64, heads))
    assert np.all([seconds(each, A100) >= one for each in more])


def test_cluster_of_four_sms_uses_two_for_fp8_keys() -> None:
    # 2 x 128 x 576 FLOPs a key by two SMs of 960e12 / (188 x 2.493e9) a clock; 47 clusters.
    clocks = 128 * 576 / (960e12 / (188 * 2.493e9))
    one, full, more = (
        seconds(step(requests, 8192, 128.0, "fp8"), replace(RTX, hbm_bytes_per_s=1e18))
        for requests in (1, 47, 48)
    )
    assert one == full == pytest.approx(8192 * clocks / 2.493e9, rel=1e-6)
    assert more == pytest.approx(2.0 * full, rel=1e-6)
    assert seconds(step(1, 8192, heads=128.0), RTX) > 3.0 * full
