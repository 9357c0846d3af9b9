"""Unified Triton attention of vLLM: when the kernel runs, and the time of a block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.kernels.families.attention import unified_seconds
from simulators.kernels.price import price
from simulators.workload.operators import Attention

A100, H100 = load_gpu("a100_sxm"), load_gpu("h100_sxm")
NUMBERS = {"start_s": 0.0, "number_clocks": 2.0, "block_clocks": 0.0}


def prompt(new: float, past: float, heads: float = 64.0, **more: object) -> Attention:
    plain = Attention(
        name="prefill_attention",
        phase="prefill",
        requests=1.0,
        query_tokens=new,
        pairs=new * (past + (new + 1.0) / 2.0),
        kv_tokens=past + new,
        heads=heads,
        kv_heads=8.0,
        head_dim=64.0,
        dtype="bf16",
        kv_dtype="bf16",
        sinks=True,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def seconds(attention: Attention, gpu: str = "a100_sxm", framework: str = "vllm") -> float:
    return float(price(attention, load_gpu(gpu), framework=framework).latency_s)


def test_block_holds_two_queries_of_eight_heads_and_steps_over_32_keys() -> None:
    one = prompt(2.0, 0.0, pairs=2.0 * 320.0)  # a block of each of eight key heads
    steps = 320.0 / 32.0 + 0.5
    clocks = 8.0 * steps * 2.0 * 64.0
    found = float(unified_seconds(one, A100, NUMBERS))
    assert found == pytest.approx(clocks / (A100.sm_count * A100.clock_hz))


def test_heads_and_rows_are_padded() -> None:
    wide, padded = (prompt(512.0, 4096.0, head_dim=dim) for dim in (256.0, 192.0))
    assert unified_seconds(wide, A100, NUMBERS) == unified_seconds(padded, A100, NUMBERS)
    four, eight = (prompt(512.0, 4096.0, heads=heads) for heads in (32.0, 64.0))
    ratio = unified_seconds(eight, A100, NUMBERS) / unified_seconds(four, A100, NUMBERS)
    assert ratio == pytest.approx(2.0)  # the work; both leave no row of a block empty


def test_triton_attention_runs_for_attention_sinks_and_is_never_faster() -> None:
    long = prompt(2048.0, 30_000.0)
    without = replace(long, sinks=False)
    assert seconds(long) > 2.0 * seconds(without)
    for gpu, framework in (("h100_sxm", "vllm"), ("a100_sxm", "trtllm")):
        assert seconds(long, gpu, framework) == seconds(without, gpu, framework)
    short = prompt(16.0, 0.0)
    assert seconds(short) >= seconds(replace(short, sinks=False))


def test_triton_attention_is_not_flagged_as_measured() -> None:
    long = price(prompt(2048.0, 30_000.0), A100, framework="vllm")
    assert not long.calibrated
    assert float(long.hi_s / long.lo_s) > 1.5


def test_chunks_and_decodes_in_one_launch_take_the_sum() -> None:
    chunk = prompt(2048.0, 30_000.0)
    decodes, keys = 64.0, 64.0 * 2000.0
    mixed = replace(
        chunk,
        phase="mixed",
        requests=65.0,
        query_tokens=2048.0 + decodes,
        pairs=np.asarray(chunk.pairs) + keys,
        kv_tokens=np.asarray(chunk.kv_tokens) + keys,
        decodes=decodes,
        decode_kv_tokens=keys,
    )
    assert seconds(mixed) > seconds(chunk)


def test_openai_models_have_attention_sinks() -> None:
    assert load_model("gpt_oss_20b").attention_sinks
    assert not load_model("llama3_1_8b").attention_sinks
