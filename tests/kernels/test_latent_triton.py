"""MLA decode in Triton: KV splits of vLLM and SGLang, blocks with and without keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.kernels.corrections import LATENT_WIDTH
from simulators.kernels.families.attention import LATENT_DECODE_DIM, attention_bytes
from simulators.kernels.families.latent_attention import (
    STEP_CLOCKS,
    TRITON_START_S,
    triton_latent_seconds,
)
from simulators.kernels.price import price
from simulators.workload.operators import Attention

A100, RTX = load_gpu("a100_sxm"), load_gpu("rtx_pro_6000")
NUMBERS = {
    "block_clocks": 0.0,
    "head_clocks": 0.0,
    "key_clocks": 100.0,
    "lone_clocks": 500.0,
    "splits": 4.0,
}


def step(requests: float, keys: float, heads: float = 16.0) -> Attention:
    return Attention(
        name="mla_decode",
        phase="decode",
        requests=requests,
        query_tokens=requests,
        pairs=requests * keys,
        kv_tokens=requests * keys,
        context_tokens=requests * keys,
        heads=heads,
        kv_heads=LATENT_WIDTH / (2.0 * LATENT_DECODE_DIM),
        head_dim=LATENT_DECODE_DIM,
        latent=True,
        dtype="bf16",
        kv_dtype="bf16",
    )


def clocks(attention: Attention, gpu: Gpu, splits: float = 4.0) -> float:
    fast = replace(gpu, hbm_bytes_per_s=1e18)
    numbers = NUMBERS | {"splits": splits}
    seconds = triton_latent_seconds(attention, fast, numbers, attention_bytes(attention))
    return float((seconds - TRITON_START_S) * gpu.clock_hz)


def test_four_splits_take_the_time_of_a_quarter_of_the_keys() -> None:
    # 2 x 16 x (576 + 512) FLOPs a key of 2,048 (less 2 %) that an A100's SM has a clock.
    products = 2 * 16 * 1088 / (312e12 / (108 * 1.41e9))
    expected = 65536 / 4 * (products + 100) + 4 * STEP_CLOCKS
    assert clocks(step(1, 65536), A100) == pytest.approx(expected, rel=1e-6)
    assert clocks(step(27, 65536), A100) == pytest.approx(expected, rel=1e-6)  # 108 blocks
    assert clocks(step(28, 65536), A100) == pytest.approx(2 * expected, rel=1e-3)


def test_single_tile_per_sm_exposes_loads() -> None:
    products = 2 * 16 * 1088 / (480e12 / (188 * 2.493e9))
    expected = 65536 / 4 * (products + 100 + 2 * 1088 / 64) + 4 * STEP_CLOCKS
    assert clocks(step(1, 65536), RTX) == pytest.approx(expected, rel=1e-6)


def test_sglang_assigns_splits_by_octaves_and_reduces_sequentially() -> None:
    # 8,192 keys are 7 octaves beyond 64: 1,316 blocks for 8 tiles are 165 splits of 50 keys, two
    # tiles of 32, so that 128 of 256 launched have any.
    one = clocks(step(1, 8192, heads=128.0), RTX, splits=0.0)
    pace = 2 * 16 * 1088 / (480e12 / (188 * 2.493e9)) + 100 + 34
    live, empty = np.ceil(8 * 128 / 188), 8 * (256 - 128) / 188
    assert one == pytest.approx(live * 64 * pace + (empty + 128) * STEP_CLOCKS, rel=1e-6)


def test_library_may_split_keys_by_more_heads_than_local() -> None:
    mine = step(8, 4096)
    assert clocks(replace(mine, split_heads=128.0), RTX, 0.0) != clocks(mine, RTX, 0.0)
    assert clocks(replace(mine, split_heads=128.0), RTX) == clocks(mine, RTX)


def test_releases_of_2025_used_at_most_eight_splits() -> None:
    few = NUMBERS | {"splits": 0.0, "most_splits": 8.0}
    fast, one = replace(A100, hbm_bytes_per_s=1e18), step(1, 65536)
    found = float(triton_latent_seconds(one, fast, few, attention_bytes(one)) - TRITON_START_S)
    assert found * A100.clock_hz == pytest.approx(clocks(one, A100, 8.0), rel=1e-6)


def test_explicitly_selected_kernels_are_transferred_despite_measured_ones() -> None:
    times = [
        float(np.max(price(step(16, 4096, 20.0), load_gpu("b200_sxm"), framework=name).latency_s))
        for name in ("sglang", "triton_8")
    ]
    assert times[1] > 1.5 * times[0]
