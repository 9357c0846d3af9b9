"""Published throughput of DeepSeek-V3 with experts on many GPUs, per GPU and step.

Nothing is fitted to these figures. Sources, all LMSYS: "Deploying DeepSeek with PD disaggregation
and large-scale expert parallelism on 96 H100 GPUs" (5 May 2025), and "Deploying DeepSeek on GB200
NVL72 with PD and large scale EP", part I (16 June 2025) and part II (25 September 2025); and
DeepSeek: "DeepSeek-V3/R1 inference system overview" (1 March 2025), and its profile, whose rates
LMSYS computed. Two-batch overlap is off on GB200, as published.
"""

from __future__ import annotations

import pytest

from simulators.composition.price import iteration
from simulators.composition.replica import Replica
from simulators.core.fields import updated
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.workload.llm.step import decode_step, prefill_step
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "explanation" / "serving.md").read_text(encoding="utf-8")
FP8, FP4 = ("fp8_block", "bf16"), ("fp8_block+nvfp4", "fp8")
"""Precisions of weights and KV cache."""


def spread(
    gpu: str, ranks: int, backend: str, precisions: tuple[str, str], redundant: int = 32
) -> Replica:
    """Return a replica of SGLang with redundant experts; between nodes with two-batch overlap."""
    dtype, kv_dtype = precisions
    point = ServingPoint(
        model="deepseek_v3",
        gpu=gpu,
        tp=1,
        attention_dp=ranks,
        ep=ranks,
        dtype=dtype,
        kv_dtype=kv_dtype,
        scheduler="sglang",
        runtime="sglang",
    )
    moe = {"backend": backend, "redundant_experts": redundant, "two_batch_overlap": gpu != "gb200"}
    changes = {f"moe.{name}": value for name, value in moe.items()}
    return deployment_of(updated(point, changes)).hardware.replica


@pytest.mark.parametrize(
    ("gpu", "ranks", "precisions", "prompt", "published_per_s", "within"),
    [
        ("h100_sxm", 32, FP8, 4096, 59_337 / 8, 0.25),
        ("h800", 32, FP8, 4096, 62_713 / 8, 0.25),  # DeepSeek's profile
        ("h100_sxm", 32, FP8, 2000, 52_300 / 8, 0.6),  # experts as requests came
        ("gb200", 4, FP8, 2000, 18_471, 0.15),
        ("gb200", 2, FP4, 2000, 26_156, 0.15),
    ],
)
def test_prefill_on_many_gpus_has_the_published_rate(
    gpu: str,
    ranks: int,
    precisions: tuple[str, str],
    prompt: int,
    published_per_s: float,
    within: float,
) -> None:
    """Prompt tokens per second and GPU, 16,384 a GPU and step; computed rates are the higher ones.

    On H100 with perfectly balanced experts: 59,337 on eight GPUs, where requests as they came had
    50,302 (and 52,300 with prompts of 2,000 tokens).
    """
    replica, each = spread(gpu, ranks, "deepep_high_throughput", precisions), 16_384
    step = prefill_step(ranks * each / prompt, float(prompt))
    rate = each / float(iteration(replica, step).latency_s)
    assert rate == pytest.approx(published_per_s, rel=within)
    assert f"| {round(rate, -1):,.0f} |" in PAGE


@pytest.mark.parametrize(
    ("gpu", "ranks", "requests", "context", "precisions", "published_per_s", "within"),
    [
        ("h100_sxm", 72, 256, 2050, FP8, 2_787, 0.25),
        ("h800", 128, 128, 4096, FP8, 18_598 / 8, 0.25),  # DeepSeek's profile
        ("h800", 144, 88, 4989, FP8, 14_800 / 8, 0.25),  # its service, at 21 tokens/s and request
        ("gb200", 48, 768, 2050, FP8, 7_583, 0.25),  # the next row is three months younger
        ("gb200", 48, 768, 2050, FP8, 9_087, 0.25),
        ("gb200", 48, 1408, 2050, FP4, 13_386, 0.25),
    ],
)
def test_decode_on_many_gpus_has_the_published_rate(
    gpu: str,
    ranks: int,
    requests: int,
    context: int,
    precisions: tuple[str, str],
    published_per_s: float,
    within: float,
) -> None:
    """Tokens per second and GPU; 768 requests are assumed, as 1,408 fit in 8 bits."""
    replica = spread(gpu, ranks, "deepep_low_latency", precisions, redundant=-256 % ranks)
    step = decode_step(float(ranks * requests), float(context))
    rate = requests / float(iteration(replica, step).latency_s)
    assert rate == pytest.approx(published_per_s, rel=within)
    assert f"| {round(rate, -1):,.0f} |" in PAGE
