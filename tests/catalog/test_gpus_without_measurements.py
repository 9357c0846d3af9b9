"""GPUs without measurements: kernels and deployments answer from data sheets, in wide intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import load_prices
from simulators.core.columns import DATASHEET
from simulators.core.folder import GPUS
from simulators.evidence.lookup import notes_on, unmeasured
from simulators.kernels.price import price, roofline_s
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from simulators.workload.operators import Attention, Gemm
from sweeper.__main__ import main

UNMEASURED = unmeasured(GPUS.names())


def dtype_of(name: str) -> str:
    return next(dtype for dtype in ("bf16", "fp16") if dtype in load_gpu(name).peak_flops)


@pytest.mark.parametrize("name", UNMEASURED)
def test_kernel_times_have_data_sheet_evidence_and_an_interval(name: str) -> None:
    gpu, dtype = load_gpu(name), dtype_of(name)
    product = Gemm(name="product", m=64.0, n=8192.0, k=8192.0, dtype=dtype)
    attention = Attention(
        name="attention",
        phase="decode",
        requests=16.0,
        query_tokens=16.0,
        pairs=16384.0,
        kv_tokens=16384.0,
        heads=32.0,
        kv_heads=8.0,
        head_dim=128.0,
        dtype=dtype,
        kv_dtype=dtype,
    )
    for operator in (product, attention):
        found = price(operator, gpu)
        assert (found.level == DATASHEET).all()
        assert found.lo_s <= found.latency_s < found.hi_s
        if not gpu.validated:
            assert found.latency_s >= roofline_s(operator, gpu)
            assert found.hi_s / found.lo_s == pytest.approx(4.0)


@pytest.mark.parametrize("name", UNMEASURED)
def test_deployment_has_a_wide_interval_and_no_measured_time(name: str) -> None:
    dtype = dtype_of(name)
    metrics = simulate(
        ServingPoint(
            model="llama3_2_1b", gpu=name, dtype=dtype, kv_dtype=dtype, requests=20, qps=1.0
        )
    )
    assert metrics.measured_share == metrics.fitted_share == 0.0
    for metric, lo, value, hi, least in (
        ("ttft", metrics.ttft_p99_s_lo, metrics.ttft_p99_s, metrics.ttft_p99_s_hi, 2.0),
        ("tpot", metrics.tpot_p99_s_lo, metrics.tpot_p99_s, metrics.tpot_p99_s_hi, 1.5),
    ):
        assert lo is not None
        assert hi is not None
        assert lo < value < hi
        assert hi > least * lo
        mean_lo, mean_hi = (getattr(metrics, f"{metric}_mean_s_{end}") for end in ("lo", "hi"))
        assert hi / lo > mean_hi / mean_lo  # a percentile is less certain than its mean
    has_price = load_prices().quote(load_gpu(name)) is not None
    assert (metrics.cost_usd_per_hour is not None) == has_price
    assert "data sheets" in notes_on([name])[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", UNMEASURED)
def test_ask_and_a_kernel_sweep_answer(
    name: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "ask --model llama3_2_1b --gpus 1 --engine vllm --qps 1 --requests 20"
    words = [*question.split(), "--dtype", dtype_of(name), "--gpu", name, "--run-with", "inline"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"1 {name} (tp 1), vllm" in text
    assert "data sheet (weakest: " in text
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["time_by_evidence"][name]["measured"] == 0.0
    axes = [f"space.axes.{axis}" for axis in (f"gpu={name}", f"dtype={dtype_of(name)}", "k=4096")]
    assert main(["+space=gemm_gpus", *axes, "engine=inline"]) == 0
    assert "Knee's time by evidence: 100 % data sheet." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gb10", "jetson_thor"])
def test_large_product_leaves_refresh_and_turnarounds_to_shared_memory(name: str) -> None:
    """LPDDR5X sustains less than its pin rate, and no GPU with such memory was measured."""
    product = Gemm(name="product", m=1.0, n=32768.0, k=8192.0, dtype="bf16")
    found, bound_s = price(product, load_gpu(name)), roofline_s(product, load_gpu(name))
    assert found.latency_s > 1.05 * bound_s
    assert found.hi_s / found.lo_s > 1.4
