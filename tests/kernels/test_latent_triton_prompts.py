"""MLA prefill in Triton: tiles of 32 queries, eight warps, sequential steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.kernels.families.attention import LATENT_PREFILL_DIM
from simulators.kernels.families.latent_attention import triton_prompt_seconds
from simulators.workload.operators import Attention

A100, H100, RTX = load_gpu("a100_sxm"), load_gpu("h100_sxm"), load_gpu("rtx_pro_6000")
NOTHING = np.zeros(1)
NUMBERS = {"start_s": 0.0, "block_clocks": 0.0, "wait_clocks": 0.0}


def prompt(
    tokens: float, requests: float = 1.0, past: float = 0.0, heads: float = 1.0
) -> Attention:
    pairs = requests * tokens * ((tokens + 1.0) / 2.0 + past)
    return Attention(
        name="mla_prefill",
        phase="prefill",
        requests=requests,
        query_tokens=requests * tokens,
        pairs=pairs,
        kv_tokens=requests * (tokens + past),
        heads=heads,
        kv_heads=heads,
        head_dim=LATENT_PREFILL_DIM,
        latent=True,
        dtype="bf16",
        kv_dtype="bf16",
    )


def clocks(attention: Attention, gpu: Gpu, **numbers: float) -> float:
    fast = replace(gpu, hbm_bytes_per_s=1e18)
    seconds = triton_prompt_seconds(attention, fast, NUMBERS | numbers, NOTHING)
    return float(seconds) * gpu.clock_hz


def test_step_on_rtx_pro_6000_scores_32_keys_twice() -> None:
    # 2 x 32 x 32 (2 x 576 + 512) FLOPs at 480e12 / 188 SMs a second; 68 KB at 64 bytes a clock; of
    # shared memory eight times 36 KB of queries, twice 36 and 32 KB, and 68 KB written, at 128.
    products = 2 * 32 * 32 * (2 * 576 + 512) / (480e12 / (188 * 2.493e9))
    queries, keys, values = 32 * 576 * 2, 32 * 576 * 2, 32 * 512 * 2
    shared = (8 * queries + 2 * keys + values + keys + values) / 128
    step = products + (keys + values) / 64 + shared
    assert clocks(prompt(32), RTX) == pytest.approx(step, rel=1e-9)
    assert clocks(prompt(32, past=3200), RTX) == pytest.approx(101 * step, rel=1e-9)


def test_step_on_a100_scores_64_keys_once() -> None:
    products = 2 * 32 * 64 * (576 + 512) / (312e12 / (108 * 1.41e9))
    loaded = 64 * (576 + 512) * 2
    step = products + loaded / 64 + (8 * 32 * 576 * 2 + 2 * loaded) / 128
    assert clocks(prompt(32), A100) == pytest.approx(step, rel=1e-9)


def test_latent_head_waits_for_three_gemms_and_plain_head_for_two() -> None:
    latent, wide = prompt(32), replace(prompt(32), latent=False, head_dim=512.0)
    waits = [clocks(a, H100, wait_clocks=1e3) - clocks(a, H100) for a in (latent, wide)]
    assert waits == pytest.approx([3000, 2000])


def test_long_prefill_spreads_over_all_sms() -> None:
    # 16,384 tokens are 512 tiles: 131,328 steps of a head over 188 SMs, and 256 steps more.
    step = clocks(prompt(32), RTX)
    assert clocks(prompt(16384), RTX) == pytest.approx((131328 / 188 + 256) * step, rel=1e-6)


def test_short_prefill_blocks_run_in_waves() -> None:
    one = clocks(prompt(20), RTX, block_clocks=5e3)
    assert clocks(prompt(20, requests=188), RTX, block_clocks=5e3) == pytest.approx(one)
    assert clocks(prompt(20, requests=189), RTX, block_clocks=5e3) == pytest.approx(2 * one)


def test_keys_evicted_from_l2_are_read_again() -> None:
    # 64 requests of 32,768 tokens are 4.6 GB; blocks of two SMs or three share what they read.
    long = prompt(32768, requests=64, heads=8.0)
    slow = replace(H100, hbm_bytes_per_s=1e11)
    said = float(triton_prompt_seconds(long, slow, NUMBERS, NOTHING))
    tile_bytes = 64 * (576 + 512) * 2
    reads = 64 * 8 * 1024 * 256.5 * tile_bytes / (132 / 64)
    assert said == pytest.approx(reads / 1e11, rel=0.1)
