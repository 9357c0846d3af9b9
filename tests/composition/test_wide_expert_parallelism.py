"""Published throughput of DeepSeek-V3 with experts on many GPUs, per GPU and step.

Nothing is fitted to these figures. Sources: LMSYS, "Deploying DeepSeek with PD disaggregation and
large-scale expert parallelism on 96 H100 GPUs" (5 May 2025), and "Deploying DeepSeek on GB200 NVL72
with PD and large scale EP, part I" (16 June 2025).
"""

from __future__ import annotations

import pytest

from simulators.composition.price import iteration
from simulators.composition.replica import Replica
from simulators.core.fields import updated
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.workload.llm.step import decode_step, prefill_step


def spread(gpu: str, ranks: int, backend: str) -> Replica:
    """Return a replica of SGLang with 32 redundant experts and two-batch overlap."""
    point = ServingPoint(
        model="deepseek_v3",
        gpu=gpu,
        tp=1,
        attention_dp=ranks,
        ep=ranks,
        dtype="fp8_block",
        kv_dtype="bf16",
        scheduler="sglang",
        runtime="sglang",
    )
    moe = {"backend": backend, "redundant_experts": 32, "two_batch_overlap": True}
    changes = {f"moe.{name}": value for name, value in moe.items()}
    return deployment_of(updated(point, changes)).hardware.replica


def test_prefill_on_32_h100_has_the_published_rate() -> None:
    """52,300 tokens per second on a node of eight GPUs, for prompts of 2,000 tokens."""
    replica = spread("h100_sxm", 32, "deepep_high_throughput")
    step_s = float(iteration(replica, prefill_step(32 * 8.0, 2000.0)).latency_s)
    assert 8 * 8 * 2000 / step_s == pytest.approx(52_300, rel=0.15)


@pytest.mark.parametrize(
    ("gpu", "ranks", "requests", "published_per_s"),
    [("h100_sxm", 72, 256, 2_787), ("gb200", 48, 768, 7_583)],
)
def test_decode_on_many_gpus_has_the_published_rate(
    gpu: str, ranks: int, requests: int, published_per_s: float
) -> None:
    """Tokens per second and GPU at contexts of about 2,050 tokens; 768 requests are assumed."""
    replica = spread(gpu, ranks, "deepep_low_latency")
    step_s = float(iteration(replica, decode_step(float(ranks * requests), 2050.0)).latency_s)
    assert requests / step_s == pytest.approx(published_per_s, rel=0.25)
