"""Tensor-core GEMMs: laws with measured rates, source of the rates, evidence flags."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulators.catalog.gpu import load_gpu, what_if
from simulators.core.errors import UserError
from simulators.kernels.families.gemm import rates_of
from simulators.kernels.levels import profile_of, tensor_rates
from simulators.kernels.price import price, roofline_s
from simulators.kernels.profile import Profile, product_seconds, quantised_s
from simulators.workload.operators import Gemm

MEASURED = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000")
FORMATS = (
    ("bf16", ""),
    ("fp8", ""),
    ("fp8", "fp8_block"),
    ("fp16", "int4"),
    ("int8", ""),
    ("fp16", ""),
    ("tf32", ""),
)
SLACK = 1.0 + 1e-12
sizes = st.integers(1, 40_000)


@st.composite
def products(draw: st.DrawFn) -> tuple[Gemm, str]:
    gpu = draw(st.sampled_from((*MEASURED, "rtx_4090", "l40s", "t4", "v100_sxm")))
    has = load_gpu(gpu).peak_flops
    dtype, weights = draw(st.sampled_from([pair for pair in FORMATS if pair[0] in has]))
    m, n, k = (float(draw(sizes)) for _ in range(3))
    batch = float(draw(st.sampled_from((1, 1, 2, 16, 128))))
    return Gemm(name="p", m=m, n=n, k=k, batch=batch, dtype=dtype, weight_dtype=weights), gpu


def seconds(gemm: Gemm, gpu: str, **scales: float) -> float:
    return float(price(gemm, what_if(load_gpu(gpu), **scales)).latency_s)


@settings(deadline=None)
@given(product=products(), size=st.sampled_from(("m", "n", "k", "batch")), more=sizes)
def test_tensor_core_time_never_falls_with_a_larger_gemm(
    product: tuple[Gemm, str], size: str, more: int
) -> None:
    gemm, gpu = product
    # A single 8-bit product's call quantises its activations; a batch of heads comes quantised.
    assume(not (gemm.dtype == "fp8" and gemm.batch == 1.0 and size == "batch"))
    larger = dataclasses.replace(gemm, **{size: getattr(gemm, size) + more})
    assert seconds(larger, gpu) * SLACK >= seconds(gemm, gpu)


@settings(deadline=None)
@given(
    product=products(),
    scale=st.sampled_from(("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")),
)
def test_better_hardware_is_never_slower_at_tensor_core_gemms(
    product: tuple[Gemm, str], scale: str
) -> None:
    gemm, gpu = product
    assert seconds(gemm, gpu, **{scale: 2.0}) <= seconds(gemm, gpu) * SLACK


@settings(deadline=None)
@given(product=products())
def test_tensor_core_gemm_is_at_least_the_roofline(product: tuple[Gemm, str]) -> None:
    gemm, gpu = product
    assert seconds(gemm, gpu) * SLACK >= float(roofline_s(gemm, load_gpu(gpu)))


def test_row_has_equal_bits_alone_and_in_a_batch() -> None:
    m = np.arange(1.0, 600.0)
    gpu = load_gpu("h200_sxm")
    together = price(Gemm(name="p", m=m, n=4096.0, k=4096.0, dtype="fp8"), gpu).latency_s
    alone = [
        float(price(Gemm(name="p", m=x, n=4096.0, k=4096.0, dtype="fp8"), gpu).latency_s) for x in m
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("gpu", MEASURED)
def test_measured_gpus_are_calibrated_inside_the_fitted_range(gpu: str) -> None:
    inside = price(Gemm(name="p", m=256.0, n=4096.0, k=4096.0, dtype="bf16"), load_gpu(gpu))
    outside = price(Gemm(name="p", m=256.0, n=1e6, k=4096.0, dtype="bf16"), load_gpu(gpu))
    assert inside.calibrated
    assert not np.any(inside.extrapolated)
    assert np.all(outside.extrapolated)


def test_unmeasured_dtypes_and_gpus_are_flagged() -> None:
    half = Gemm(name="p", m=256.0, n=4096.0, k=4096.0, dtype="fp16")
    assert not price(half, load_gpu("h100_sxm")).calibrated
    assert not price(dataclasses.replace(half, dtype="bf16"), load_gpu("l40s")).calibrated


def test_zero_shot_never_uses_own_measurements() -> None:
    profile = profile_of(load_gpu("h200_sxm"), "zero_shot")
    sources = {rates.measured_on for rates in profile.tensor.values()}
    assert sources <= set(MEASURED) - {"h200_sxm"}
    assert not any(rates.calibrated for rates in profile.tensor.values())


def test_frameworks_use_different_kernels() -> None:
    gemm = Gemm(name="p", m=8.0, n=4096.0, k=4096.0, dtype="fp8")
    gpu = load_gpu("h100_sxm")
    # TensorRT-LLM's call quantises the activations too, which takes longer than this product.
    assert (
        price(gemm, gpu, framework="vllm").latency_s
        < price(gemm, gpu, framework="trtllm").latency_s
    )
    with pytest.raises(UserError, match="framework"):
        price(gemm, gpu, framework="vlm")


def test_geforce_gpu_reads_weights_at_nearly_full_bandwidth() -> None:
    gpu = load_gpu("rtx_4090")
    layer = ((6144.0, 4096.0), (4096.0, 4096.0), (28672.0, 4096.0), (4096.0, 14336.0))
    products = [Gemm(name="p", m=35.0, n=n, k=k, dtype="fp16") for n, k in layer]
    read_s = sum(n * k for n, k in layer) * 2.0 / gpu.hbm_bytes_per_s
    assert sum(float(price(gemm, gpu).latency_s) for gemm in products) < 1.4 * read_s


def test_batched_per_head_gemms_have_separate_rates() -> None:
    gpu = load_gpu("h100_sxm")
    heads = Gemm(name="p", m=64.0, n=512.0, k=128.0, batch=np.array([1.0, 16.0]), dtype="bf16")
    priced = price(heads, gpu)
    assert priced.calibrated
    assert not np.asarray(priced.extrapolated)[1]
    assert priced.latency_s[0] <= priced.latency_s[1]
    profile = profile_of(gpu)
    (single, _), (batched, _) = rates_of(heads, gpu, profile)
    assert (single, batched) == ("tensor_bf16", "tensor_bmm")


def test_block_scaled_weights_are_a_separate_dtype() -> None:
    blocks = Gemm(name="p", m=64.0, n=4096.0, k=4096.0, dtype="fp8", weight_dtype="fp8_block")
    gpu = load_gpu("h200_sxm")
    assert price(blocks, gpu).calibrated
    plain = dataclasses.replace(blocks, weight_dtype="")
    assert price(blocks, gpu).latency_s != price(plain, gpu).latency_s


def test_source_gpus_are_ordered_by_similarity() -> None:
    assert tensor_rates("h100_pcie", "hopper", "trtllm")["bf16"].measured_on == "h100_sxm"
    assert tensor_rates("l40s", "ada", "trtllm")["bf16"].measured_on == "rtx_pro_6000"
    assert tensor_rates("mi300x", "cdna3", "trtllm") == {}


def test_half_rate_gpu_is_never_a_source_and_uses_own_numbers() -> None:
    assert tensor_rates("rtx_4090", "ada", "trtllm")["bf16"].measured_on == "rtx_4090"
    assert tensor_rates("l4", "ada", "trtllm")["bf16"].measured_on == "rtx_pro_6000"
    assert tensor_rates("rtx_4090", "ada", "trtllm")["fp8"].measured_on == "rtx_pro_6000"


GPUS = (*MEASURED, "l40s", "l4", "a10", "rtx_3090", "rtx_4090", "t4", "v100_sxm", "mi300x")


@settings(deadline=None)
@given(
    gpu=st.sampled_from(GPUS),
    framework=st.sampled_from(["trtllm", "vllm", "sglang"]),
    weights=st.sampled_from(["int8", "int4"]),
    m=st.integers(1, 16),
    n=st.integers(64, 40_000),
    k=st.integers(64, 40_000),
)
def test_quantized_weights_never_slow_small_batches_unless_measured(
    gpu: str, framework: str, weights: str, m: int, n: int, k: int
) -> None:
    device = load_gpu(gpu)
    narrow = Gemm(name="p", m=float(m), n=float(n), k=float(k), dtype="fp16", weight_dtype=weights)
    (_, rates), _ = rates_of(narrow, device, profile_for(gpu, framework))
    assume(getattr(rates, "framework", "") != framework)  # as measured, which it may be
    wide = dataclasses.replace(narrow, weight_dtype="")
    narrow_s, wide_s = (
        float(price(one, device, framework=framework).latency_s) for one in (narrow, wide)
    )
    assert narrow_s <= wide_s * SLACK


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("framework", ["trtllm", "vllm", "sglang"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_large_matrices_are_not_slower_with_fewer_bits(
    gpu: str, framework: str, weights: str
) -> None:
    if (gpu, framework, weights) == ("h100_sxm", "sglang", "int8"):
        pytest.skip("measured so")
    narrow = Gemm(name="p", m=4.0, n=8192.0, k=8192.0, dtype="fp16", weight_dtype=weights)
    wide = dataclasses.replace(narrow, weight_dtype="")
    narrow_s, wide_s = (
        float(price(one, load_gpu(gpu), framework=framework).latency_s) for one in (narrow, wide)
    )
    assert narrow_s <= wide_s * SLACK


def test_kernel_without_quantization_gain_is_not_transferred_to_other_libraries() -> None:
    # SGLang's w8a16 on an H100 takes longer than its 16-bit product, TensorRT-LLM's on an H200 not.
    found = {
        whose: tensor_rates("h100_sxm", "hopper", whose)["w8a16"]
        for whose in ("sglang", "trtllm", "vllm")
    }
    sources = {whose: rates.measured_on for whose, rates in found.items()}
    assert sources == {"sglang": "h100_sxm", "trtllm": "h200_sxm", "vllm": "h200_sxm"}


def profile_for(gpu: str, framework: str) -> Profile:
    profile = profile_of(load_gpu(gpu), "best")
    rates = tensor_rates(gpu, load_gpu(gpu).architecture, framework)
    return dataclasses.replace(profile, framework=framework, tensor=rates)


def test_quantization_to_blocks_moves_the_activations() -> None:
    gpu = load_gpu("h100_sxm")
    rates = profile_of(gpu, framework="vllm").tensor["fp8_block"]
    m, n, k, batch = np.array([[8192.0], [4096.0], [4096.0], [1.0]])
    sizes = m, n, k, batch
    moved = 3.0 * 8192.0 * 4096.0 / gpu.hbm_bytes_per_s  # 16 bits in, 8 bits out
    assert 1.0 < rates.quantising < 5.0  # of the bandwidth that a copy has
    assert quantised_s(rates, sizes, gpu, "fp8")[0] == pytest.approx(rates.quantising * moved)
    apart = dataclasses.replace(rates, quantising=0.0, correction=None)
    together = dataclasses.replace(rates, correction=None)
    longer = product_seconds(together, sizes, gpu, "fp8", "fp8_block") - product_seconds(
        apart, sizes, gpu, "fp8", "fp8_block"
    )
    assert longer[0] == pytest.approx(rates.quantising * moved)


def test_engines_quantize_to_blocks_in_the_call_of_the_product() -> None:
    gpu, narrow = load_gpu("b200_sxm"), Gemm(name="x", m=64.0, n=8192.0, k=8192.0, dtype="fp8")
    blocks = dataclasses.replace(narrow, weight_dtype="fp8_block")
    assert price(narrow, gpu, framework="vllm").quantising_s > 0.0
    assert price(blocks, gpu, framework="vllm").quantising_s == 0.0
