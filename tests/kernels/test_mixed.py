"""Laws of chunked prefill, mixed batches, windows and intervals of attention and experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.gpu import load_gpu, what_if
from simulators.kernels.price import price
from simulators.workload.operators import Attention, GroupedGemm

GPUS = st.sampled_from(("rtx_pro_6000", "rtx_4090", "h100_sxm", "a100_sxm"))
FRAMEWORKS = st.sampled_from(("trtllm", "vllm"))
SLACK = 1.0 + 1e-12


def mixed(chunk: float, past: float, decodes: float, keys: float) -> Attention:
    one = float(chunk > 0.0)
    return Attention(
        name="attention",
        phase="mixed",
        requests=one + decodes,
        query_tokens=chunk + decodes,
        pairs=chunk * past + chunk * (chunk + 1.0) / 2.0 + decodes * keys,
        kv_tokens=one * (chunk + past) + decodes * keys,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
        dtype="bf16",
        kv_dtype="bf16",
        decodes=decodes,
        decode_kv_tokens=decodes * keys,
    )


@settings(deadline=None)
@given(
    gpu=GPUS,
    framework=FRAMEWORKS,
    sizes=st.tuples(
        st.integers(0, 4096), st.integers(0, 30_000), st.integers(0, 300), st.integers(1, 30_000)
    ),
    which=st.integers(0, 3),
    more=st.integers(1, 5000),
)
def test_more_work_never_speeds_up_a_mixed_batch(
    gpu: str, framework: str, sizes: tuple[int, int, int, int], which: int, more: int
) -> None:
    device = load_gpu(gpu)
    larger = [float(size) for size in sizes]
    before = price(mixed(*larger), device, framework=framework).latency_s
    larger[which] += more
    after = price(mixed(*larger), device, framework=framework).latency_s
    assert float(before) <= float(after) * SLACK


@pytest.mark.parametrize("framework", ["trtllm", "vllm"])
def test_mixed_batch_without_chunks_equals_decode(framework: str) -> None:
    device = load_gpu("rtx_pro_6000")
    batch = mixed(0.0, 0.0, 16.0, 2000.0)
    alone = replace(batch, phase="decode", decodes=0.0, decode_kv_tokens=0.0)
    together, apart = (price(a, device, framework=framework).latency_s for a in (batch, alone))
    assert float(together) == float(apart)


def test_libraries_without_a_mixed_kernel_launch_two_kernels() -> None:
    device = load_gpu("h100_sxm")
    batch = mixed(512.0, 4096.0, 64.0, 3000.0)
    chunk = replace(mixed(512.0, 4096.0, 0.0, 1.0), phase="prefill")
    decode = replace(mixed(0.0, 0.0, 64.0, 3000.0), phase="decode")
    one_by_one = sum(
        float(price(replace(a, decodes=0.0, decode_kv_tokens=0.0), device).latency_s)
        for a in (chunk, decode)
    )
    assert float(price(batch, device).latency_s) == pytest.approx(one_by_one, rel=1e-9)


def test_unified_launch_without_split_kv_waits_for_the_longest_request() -> None:
    device = load_gpu("rtx_pro_6000")
    batch = mixed(64.0, 0.0, 1.0, 16_384.0)
    together = float(price(batch, device, framework="vllm").latency_s)
    split = float(price(mixed(0.0, 0.0, 1.0, 16_384.0), device, framework="vllm").latency_s)
    assert together > 3.0 * split


@settings(deadline=None)
@given(
    scale=st.floats(1.0, 4.0),
    requests=st.integers(1, 3000),
    keys=st.integers(1, 200_000),
    which=st.booleans(),
)
def test_decode_laws_hold_on_what_if_gpus(
    scale: float, requests: int, keys: int, which: bool
) -> None:
    device = what_if(load_gpu("h200_sxm"), bandwidth_scale=scale)
    more = (2 * requests, keys) if which else (requests, 2 * keys)
    before, after = (
        float(price(mixed(0.0, 0.0, float(r), float(k)), device).latency_s)
        for r, k in ((requests, keys), more)
    )
    assert before <= after * SLACK


def test_sliding_window_is_never_slower_at_long_contexts() -> None:
    device = load_gpu("h100_sxm")
    whole = replace(mixed(0.0, 0.0, 64.0, 8192.0), phase="decode")
    seen = replace(whole, kv_tokens=64.0 * 128.0, pairs=64.0 * 128.0, window=128.0)
    assert float(price(seen, device).latency_s) < float(price(whole, device).latency_s)


def test_empty_work_takes_no_time() -> None:
    device = load_gpu("h100_sxm")
    none = replace(
        mixed(0.0, 0.0, 0.0, 1.0),
        phase="decode",
        requests=np.array([0.0, 4.0]),
        query_tokens=np.array([0.0, 4.0]),
        pairs=np.array([0.0, 400.0]),
        kv_tokens=np.array([0.0, 400.0]),
    )
    idle, busy = price(none, device).latency_s.tolist()
    assert idle == 0.0
    assert busy > 0.0
    experts = GroupedGemm(
        name="up", tokens=0.0, n=4096, k=2048, experts=64, top_k=8.0, dtype="bf16"
    )
    assert float(price(experts, device).latency_s) == 0.0


def test_transferred_interval_is_not_narrower() -> None:
    decode = replace(mixed(0.0, 0.0, 16.0, 2000.0), phase="decode")
    own, transferred = (price(decode, load_gpu(gpu)) for gpu in ("h100_sxm", "h100_pcie"))
    assert own.lo_s < own.latency_s < own.hi_s
    assert float(transferred.hi_s / transferred.lo_s) >= float(own.hi_s / own.lo_s)
