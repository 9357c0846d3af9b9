"""Laws of fused attention and expert kernels with fitted numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fits.kernels.kernel_calibration import form
from simulators.catalog.gpu import load_gpu, what_if
from simulators.evidence.lookup import FRAMEWORKS
from simulators.kernels.families.experts import ExpertSizes, expert_seconds
from simulators.kernels.price import price, roofline_s
from simulators.workload.operators import Attention, GroupedGemm

GPUS = st.sampled_from(
    (
        "a100_sxm",
        "h100_sxm",
        "h200_sxm",
        "b200_sxm",
        "rtx_pro_6000",
        "rtx_4090",
        "l40s",
        "a40",
        "h100_pcie",
    )
)
WHOSE = st.sampled_from(FRAMEWORKS)
SLACK = 1.0 + 1e-12


def attention(phase: str, requests: float, new: float, past: float, heads: float) -> Attention:
    chunk = new if phase == "prefill" else 1.0
    return Attention(
        name="attention",
        phase=phase,
        requests=requests,
        query_tokens=requests * chunk,
        pairs=requests * (chunk * past + chunk * (chunk + 1.0) / 2.0),
        kv_tokens=requests * (past + chunk),
        heads=heads,
        kv_heads=min(heads / 4.0, 4.0),
        head_dim=128.0,
        dtype="bf16",
        kv_dtype="bf16",
    )


@settings(deadline=None)
@given(
    gpu=GPUS,
    whose=WHOSE,
    heads=st.sampled_from((4.0, 32.0, 64.0, 256.0)),
    phase=st.sampled_from(("prefill", "decode")),
    requests=st.integers(1, 300),
    new=st.integers(1, 9000),
    past=st.integers(0, 90_000),
    which=st.integers(0, 2),
    more=st.integers(1, 5000),
)
def test_attention_is_never_faster_with_more_requests_or_tokens(
    gpu: str,
    whose: str,
    heads: float,
    phase: str,
    requests: int,
    new: int,
    past: int,
    which: int,
    more: int,
) -> None:
    def seconds(operator: Attention) -> float:
        return float(price(operator, device, framework=whose).latency_s)

    sizes = [float(requests), float(new), float(past)]
    device = load_gpu(gpu)
    operator = attention(phase, sizes[0], sizes[1], sizes[2], heads)
    before = seconds(operator)
    sizes[which] += more
    after = seconds(attention(phase, sizes[0], sizes[1], sizes[2], heads))
    assert before <= after * SLACK
    assert before >= float(roofline_s(operator, device))


@settings(deadline=None)
@given(gpu=GPUS, tokens=st.integers(1, 20_000), more=st.integers(1, 5000))
def test_experts_are_never_faster_with_more_tokens(gpu: str, tokens: int, more: int) -> None:
    def seconds(count: float) -> float:
        operator = GroupedGemm(
            name="up", tokens=count, n=4096, k=2048, experts=64, top_k=8.0, dtype="bf16"
        )
        return float(price(operator, load_gpu(gpu)).latency_s)

    assert seconds(float(tokens)) <= seconds(float(tokens + more)) * SLACK


def experts(tokens: float, dtype: str, weight_dtype: str = "") -> GroupedGemm:
    return GroupedGemm(
        name="up",
        tokens=tokens,
        n=5760,
        k=2880,
        experts=32,
        top_k=4.0,
        dtype=dtype,
        weight_dtype=weight_dtype,
    )


def test_four_bit_weights_help_small_batches_but_not_large_ones() -> None:
    device = load_gpu("h100_sxm")
    for tokens, helped in ((8.0, True), (8192.0, False)):
        wide = float(price(experts(tokens, "bf16"), device).latency_s)
        narrow = float(price(experts(tokens, "fp16", "int4"), device).latency_s)
        assert (narrow < wide) == helped


@pytest.mark.parametrize(
    ("gpu", "dtype", "weight_dtype", "at_home"),
    [
        ("b200_sxm", "fp4", "", True),
        ("b200_sxm", "fp8", "fp4", True),
        ("b200_sxm", "fp8", "fp8_block", True),
        ("rtx_pro_6000", "fp4", "", True),
        ("h100_sxm", "fp16", "int4", True),
        ("h200_sxm", "fp16", "fp4", True),
        ("a100_sxm", "fp16", "int4", True),
        ("a100_sxm", "fp16", "fp4", False),
        ("b200_sxm", "fp16", "int4", False),
    ],
)
def test_quantized_experts_use_measured_or_transferred_numbers(
    gpu: str, dtype: str, weight_dtype: str, at_home: bool
) -> None:
    priced = price(experts(64.0, dtype, weight_dtype), load_gpu(gpu))
    assert priced.calibrated == at_home
    assert float(priced.lo_s) < float(priced.latency_s) < float(priced.hi_s)


@settings(deadline=None)
@given(gpu=GPUS, requests=st.integers(1, 300), past=st.integers(0, 90_000))
def test_higher_bandwidth_never_slows_decode(gpu: str, requests: int, past: int) -> None:
    device, operator = load_gpu(gpu), attention("decode", float(requests), 1.0, float(past), 32.0)
    faster = price(operator, what_if(device, bandwidth_scale=1.5)).latency_s
    assert float(faster) <= float(price(operator, device).latency_s) * SLACK


def test_row_equals_its_value_in_a_column() -> None:
    device, like = load_gpu("h100_sxm"), attention("decode", 1.0, 1.0, 1000.0, 32.0)

    def latency_s(requests: Any) -> Any:
        step = replace(
            like,
            requests=requests,
            query_tokens=requests,
            pairs=requests * 1001.5,
            kv_tokens=requests * 1001.0,
        )
        return price(step, device).latency_s

    requests = np.array([1.0, 7.0, 64.0, 256.0])
    together = latency_s(requests)
    alone = [float(latency_s(r)) for r in requests.tolist()]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    ("gpu", "known"), [("h100_sxm", True), ("b200_sxm", True), ("l40s", False)]
)
def test_only_measured_gpus_are_calibrated(gpu: str, known: bool) -> None:
    operator = attention("decode", 8.0, 1.0, 1000.0, 32.0)
    assert price(operator, load_gpu(gpu)).calibrated is known
    assert price(operator, load_gpu(gpu), "zero_shot").calibrated is False


def latent(phase: str, width: float) -> Attention:
    """Eight requests of latent attention whose scores and sums have this mean width."""
    chunk = 1024.0 if phase == "prefill" else 1.0
    return Attention(
        name="latent",
        phase=phase,
        requests=8.0,
        query_tokens=8.0 * chunk,
        pairs=8.0 * (chunk * (chunk + 1.0) / 2.0 if phase == "prefill" else 4096.0),
        kv_tokens=8.0 * (chunk if phase == "prefill" else 4096.0),
        heads=16.0,
        kv_heads=16.0 if phase == "prefill" else 576.0 / (2.0 * width),
        head_dim=width,
        latent=True,
        dtype="bf16",
        kv_dtype="bf16",
    )


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "b200_sxm", "rtx_pro_6000", "l40s"])
@pytest.mark.parametrize("whose", ["trtllm", "vllm"])
@pytest.mark.parametrize(("phase", "width"), [("prefill", 160.0), ("decode", 544.0)])
def test_mla_times_are_smooth_in_the_width(gpu: str, whose: str, phase: str, width: float) -> None:
    device = load_gpu(gpu)
    seconds = [
        float(price(latent(phase, width + more), device, framework=whose).latency_s)
        for more in (-1.0, 0.0, 1.0)
    ]
    assert seconds == sorted(seconds)
    assert seconds[2] < 1.02 * seconds[0]


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "b200_sxm", "rtx_pro_6000"])
def test_head_as_wide_as_a_latent_fits_between_neighbours(gpu: str) -> None:
    seconds = [
        float(price(replace(latent("prefill", d), latent=False), load_gpu(gpu)).latency_s)
        for d in (159.0, 160.0, 161.0)
    ]
    assert seconds == sorted(seconds)


def test_doubled_exponential_rate_gives_less_than_double_speed() -> None:
    ultra = load_gpu("b300_sxm")
    assert ultra.exponentials_per_clock == 2 * load_gpu("b200_sxm").exponentials_per_clock
    chunk = Attention(
        name="a",
        phase="prefill",
        requests=1.0,
        query_tokens=8192.0,
        pairs=8192.0 * 4096.0,
        kv_tokens=8192.0,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
        dtype="bf16",
        kv_dtype="bf16",
    )
    fast, slow = (
        float(price(chunk, gpu).latency_s)
        for gpu in (ultra, replace(ultra, exponentials_per_clock=16))
    )
    assert 0.5 < fast / slow < 0.99


def test_small_tiles_pad_less_and_unaligned_widths_are_slower() -> None:
    gpu = load_gpu("a100_sxm")

    def seconds(tokens: float, width: float, **more: float) -> float:
        one = np.ones(1)
        sizes = ExpertSizes(
            tokens=tokens * one,
            routed=tokens * one,
            rows=tokens * one,
            activated=4.0 * one,
            experts=8.0 * one,
            chosen=one,
            width=width * one,
            n=2.0 * width * one,
            k=4096.0 * one,
        )
        return float(expert_seconds(sizes, "bf16", gpu, {**form("experts").start, **more})[0])

    two = {"tall": 1.5, "unaligned": 2.0}
    assert seconds(8.0, 1024.0, **two) < seconds(8.0, 1024.0) < seconds(9.0, 1024.0, **two)
    assert seconds(8.0, 1000.0, **two) > seconds(8.0, 1024.0, **two)
    assert seconds(8.0, 1000.0) < seconds(8.0, 1024.0)
