"""MLA prefill with warp-level MMA: exponentials overlapped with MMA, and fp8 copies."""

from __future__ import annotations

import pytest

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.kernels.families.attention import LATENT_PREFILL_DIM, attention_bytes
from simulators.kernels.families.latent_attention import warp_prompt_seconds
from simulators.workload.operators import Attention

A100, RTX = load_gpu("a100_sxm"), load_gpu("rtx_pro_6000")
NUMBERS = {
    "start_s": 0.0,
    "compute": 0.5,
    "bandwidth": 1.0,
    "tile": 0.0,
    "step": 0.0,
    "exponentials": 1.0,
    "tail": 0.0,
}


def prompt(tokens: float, requests: float = 1.0, kv_dtype: str = "bf16") -> Attention:
    pairs = requests * tokens * (tokens + 1.0) / 2.0
    return Attention(
        name="mla_prefill",
        phase="prefill",
        requests=requests,
        query_tokens=requests * tokens,
        pairs=pairs,
        kv_tokens=requests * tokens,
        heads=128.0,
        kv_heads=128.0,
        head_dim=LATENT_PREFILL_DIM,
        latent=True,
        dtype="bf16",
        kv_dtype=kv_dtype,
    )


def seconds(attention: Attention, gpu: Gpu) -> float:
    return float(warp_prompt_seconds(attention, gpu, NUMBERS, attention_bytes(attention)))


@pytest.mark.parametrize("gpu", [A100, RTX])
def test_pair_costs_its_gemms_and_one_exponential(gpu: Gpu) -> None:
    pairs = 128 * 32768 * 32769 / 2
    products_s = 2 * (192 + 128) * pairs / (0.5 * gpu.peak("bf16"))
    exponentials_s = pairs / (16 * gpu.sm_count * gpu.clock_hz)
    assert seconds(prompt(32768), gpu) == pytest.approx(products_s + exponentials_s, rel=1e-3)


def test_long_prefill_with_fp8_keys_is_twice_as_fast_on_fp8_gpus() -> None:
    narrow, wide = (seconds(prompt(65536, kv_dtype=kv), RTX) for kv in ("fp8", "bf16"))
    assert 0.5 < narrow / wide < 0.6
    same = [seconds(prompt(65536, kv_dtype=kv), A100) for kv in ("fp8", "bf16")]
    assert same[0] == pytest.approx(same[1], rel=1e-3)


def test_short_prompts_with_fp8_keys_pay_for_dequantization() -> None:
    # 32,768 tokens of 128 heads: 1,536 bytes each, six gigabytes in all, through 1.597 TB/s.
    narrow, wide = (seconds(prompt(16, 2048, kv), RTX) for kv in ("fp8", "bf16"))
    assert narrow - wide == pytest.approx(32768 * 128 * 1536 / 1.597e12, rel=0.3)
