"""Fused MoE layers: terms of the model, and monotonicity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import load_model
from simulators.kernels.families.experts import entry_for, expert_seconds, expert_sizes
from simulators.kernels.families.family import Entry, entry_of
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price
from simulators.kernels.profile import Profile
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step
from simulators.workload.llm.transformer import forward
from simulators.workload.operators import GroupedGemm, active_experts

SLACK = 1.0 + 1e-9

EIGHTH = GroupedGemm(
    name="up",
    tokens=64.0,
    n=1536,
    k=2048,
    experts=16,
    top_k=1.0,
    dtype="bf16",
    width=768.0,
    ranks=8.0,
)
"""One of eight GPUs over which 128 experts are dealt, of which a token chooses eight."""


def test_expert_parallel_gpu_gets_its_share_of_rows() -> None:
    sizes = expert_sizes(EIGHTH)
    assert (float(sizes.rows), float(sizes.routed)) == (64.0, 512.0)
    assert float(sizes.activated) == pytest.approx(16.0 * (1.0 - (15.0 / 16.0) ** 64))
    assert float(sizes.activated) == float(active_experts(EIGHTH))


def test_moe_time_is_the_sum_of_terms() -> None:
    device = load_gpu("h100_sxm")
    nothing = dict.fromkeys(("pad", "step_s", "activated_clocks", "expert_clocks"), 0.0)
    nothing |= dict.fromkeys(("compute", "bandwidth", "traffic", "passing"), np.inf)
    nothing |= {"start_s": 0.0}

    def seconds(**numbers: float) -> float:
        return float(expert_seconds(expert_sizes(EIGHTH), "bf16", device, nothing | numbers))

    n, k, active = 1536.0, 2048.0, float(active_experts(EIGHTH))
    assert seconds(start_s=3e-6) == 3e-6
    assert seconds(step_s=1e-9) == pytest.approx(k * 1e-9)
    assert seconds(bandwidth=0.5) == pytest.approx(active * n * k * 2.0 / (0.5 * 3.35e12))
    assert seconds(passing=1.0) == pytest.approx(512.0 * n * 2.0 / 3.35e12)
    assert seconds(expert_clocks=100.0) == pytest.approx(16.0 * 100.0 / device.clock_hz)
    rows = 64.0 + 8.0 * active
    full_s = 2.0 * n * k * rows / device.peak("bf16")
    assert seconds(compute=1.0, pad=8.0) == pytest.approx(full_s)
    assert seconds(compute=1.0, pad=8.0, tuned_16_768=2.0) == pytest.approx(full_s / 2.0)
    assert seconds(compute=1.0, pad=8.0, tuned_8_768=2.0) == pytest.approx(full_s)


@settings(deadline=None)
@given(
    gpu=st.sampled_from(["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm"]),
    framework=st.sampled_from(["trtllm", "vllm", "sglang"]),
    weights=st.sampled_from(["", "int8", "int4", "fp4"]),
    tokens=st.integers(1, 20_000),
    more=st.integers(1, 5000),
)
def test_more_tokens_or_remote_rows_are_never_faster(
    gpu: str, framework: str, weights: str, tokens: int, more: int
) -> None:
    def seconds(grouped: GroupedGemm) -> float:
        return float(price(grouped, load_gpu(gpu), framework=framework).latency_s)

    few = replace(EIGHTH, tokens=float(tokens), weight_dtype=weights)
    assert seconds(few) <= seconds(replace(few, tokens=float(tokens + more))) * SLACK
    assert seconds(replace(few, ranks=1.0)) <= seconds(few) * SLACK


@pytest.mark.parametrize(("model", "stored"), [("gpt_oss_120b", "fp4"), ("qwen3_30b", "int4")])
def test_four_bit_experts_use_the_kernels_of_the_dtype(model: str, stored: str) -> None:
    step = decode_step(4.0, 400.0)
    operators = forward(load_model(model), Parallelism(), step, "bf16+w4a16", "bf16")
    grouped = [one for one in operators if isinstance(one, GroupedGemm)]
    assert {one.weight_dtype for one in grouped} == {stored}
    device, name = load_gpu("h100_sxm"), {"fp4": "mxfp4", "int4": "w4a16"}[stored]
    profile = replace(profile_of(device, "best"), framework="sglang")
    used, meant = entry_for(grouped[0], device, profile), measured_entry(device, profile, name)
    assert used is not None
    assert meant is not None
    assert used.numbers == meant.numbers


def test_eight_bit_experts_read_twice_the_bytes_of_four_bit_experts() -> None:
    device = load_gpu("a100_sxm")
    profile = replace(profile_of(device, "best"), framework="vllm")
    whole = replace(EIGHTH, n=3072, k=4096, width=1536.0, ranks=1.0, dtype="fp16")
    four, eight = (replace(whole, weight_dtype=name) for name in ("int4", "int8"))
    used, meant = entry_for(eight, device, profile), entry_for(four, device, profile)
    assert used is not None
    assert meant is not None
    assert (used.numbers, used.calibrated) == (meant.numbers, False)

    def seconds(grouped: GroupedGemm, tokens: float) -> float:
        return float(price(replace(grouped, tokens=tokens), device, framework="vllm").latency_s)

    assert seconds(eight, 64.0) > 1.04 * seconds(four, 64.0)
    assert seconds(eight, 20_000.0) == pytest.approx(seconds(four, 20_000.0), rel=0.01)


def measured_entry(device: Gpu, profile: Profile, name: str) -> Entry | None:
    return entry_of(device, profile, "experts", (name,))


def test_marlin_runs_mxfp4_experts_where_a_launch_asks_for_it() -> None:
    few, many = (
        GroupedGemm(
            name="up", tokens=tokens, n=5760, k=2880, experts=128, top_k=4.0, weight_dtype="fp4"
        )
        for tokens in (4.0, 8192.0)
    )
    own, marlin = (
        [float(price(one, load_gpu("h100_sxm"), framework=name).latency_s) for one in (few, many)]
        for name in ("vllm", "marlin")
    )
    assert (
        marlin[0] < own[0]
    )  # vLLM 0.24, gpt-oss's layers: 1.4 to 1.9 times as long for many tokens
    assert 1.3 * own[1] < marlin[1] < 2.2 * own[1]
