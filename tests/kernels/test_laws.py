"""Laws of kernel latency that hold for every shape, precision and device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.catalog.gpu import load_gpu, what_if
from simulators.core.errors import UserError
from simulators.kernels.price import price, price_call, roofline_s
from simulators.workload.operators import Attention, Compute, Elementwise, Gemm, GroupedGemm, Norm

DEVICES = ("v100_pcie", "a100_pcie_40gb", "h100_sxm", "p100_pcie", "t4", "mi100", "mi210", "l4")
SLACK = 1.0 + 1e-12  # rounding of the last bits
sizes = st.integers(1, 20_000)
devices = st.sampled_from(DEVICES)


dtypes = st.sampled_from(("fp32", "fp16"))


@st.composite
def gemms(draw: st.DrawFn) -> Gemm:
    return Gemm(
        name="gemm",
        m=float(draw(sizes)),
        n=float(draw(sizes)),
        k=float(draw(sizes)),
        batch=float(draw(st.one_of(st.just(1), st.integers(1, 2048)))),
        dtype=draw(dtypes),
    )


@st.composite
def operators(draw: st.DrawFn) -> Compute:
    rows, cols = float(draw(sizes)), float(draw(sizes))
    requests, past = float(draw(st.integers(1, 256))), float(draw(sizes))
    attention = Attention(
        name="attention",
        phase=draw(st.sampled_from(("prefill", "decode"))),
        requests=requests,
        query_tokens=requests,
        pairs=requests * past,
        kv_tokens=requests * past,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
    )
    return draw(
        st.sampled_from(
            (
                draw(gemms()),
                attention,
                Norm(name="norm", rows=rows, cols=cols, kind="softmax"),
                Norm(name="norm", rows=rows, cols=cols, kind="layer_norm", dtype="fp32"),
                Elementwise(name="add", elements=rows * cols, reads=2.0, dtype="fp32"),
                GroupedGemm(name="up", tokens=rows, n=cols, k=past, experts=8, top_k=2.0),
            )
        )
    )


def latency(operator: Compute, gpu: str, **scales: float) -> float:
    return float(price(operator, what_if(load_gpu(gpu), **scales)).latency_s)


@settings(deadline=None)  # the first example compiles
@given(gemm=gemms(), gpu=devices, size=st.sampled_from(("m", "n", "k", "batch")), more=sizes)
def test_time_never_falls_with_a_larger_gemm(gemm: Gemm, gpu: str, size: str, more: int) -> None:
    step = 1 if size == "batch" else 256
    larger = dataclasses.replace(gemm, **{size: getattr(gemm, size) + step * (1 + more % 40)})
    assert latency(larger, gpu) * SLACK >= latency(gemm, gpu)


@settings(deadline=None)  # the first example compiles
@given(operator=operators(), gpu=devices)
def test_latency_is_at_least_the_data_sheet_roofline(operator: Compute, gpu: str) -> None:
    least = float(roofline_s(operator, load_gpu(gpu)))
    assert latency(operator, gpu) * SLACK >= least
    assert float(price_call(operator, load_gpu(gpu)).latency_s) * SLACK >= least


@settings(deadline=None)  # the first example compiles
@given(
    operator=operators(),
    gpu=devices,
    what=st.sampled_from(("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")),
    base=st.floats(0.25, 4.0),
    factor=st.floats(1.0, 8.0),
)
def test_more_hardware_never_increases_latency(
    operator: Compute, gpu: str, what: str, base: float, factor: float
) -> None:
    before = latency(operator, gpu, **{what: base})
    assert latency(operator, gpu, **{what: base * factor}) <= before * SLACK


@settings(deadline=None)  # the first example compiles
@given(gemm=gemms(), gpu=devices, others=st.lists(sizes, min_size=1, max_size=9))
def test_row_is_bit_equal_alone_and_in_a_batch(gemm: Gemm, gpu: str, others: list[int]) -> None:
    column = np.array([*others, gemm.m], np.float64)
    together = price(dataclasses.replace(gemm, m=column), load_gpu(gpu)).latency_s[-1]
    assert together == latency(gemm, gpu)


def test_unsupported_dtype_lists_supported_dtypes() -> None:
    with pytest.raises(UserError, match="has no fp8 rate"):
        price(Gemm(name="gemm", m=1, n=1, k=1, dtype="fp8"), load_gpu("v100_pcie"))


def test_cached_prices_require_bit_equal_sizes() -> None:
    gpu, rows = load_gpu("h100_sxm"), np.array([16.0, 32.0])
    norm = Norm(name="norm", rows=rows, cols=4096.0, kind="rms")
    again = dataclasses.replace(norm, rows=rows.copy(), repeat=80)
    assert price(norm, gpu) is price(again, gpu)
    nearly = dataclasses.replace(norm, rows=np.nextafter(rows, 0.0))
    assert price(nearly, gpu) is not price(norm, gpu)
