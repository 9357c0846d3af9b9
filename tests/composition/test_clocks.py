"""GPUs with a lower clock or a power limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import at_full_clock, load_gpu, what_if, with_clock_share
from simulators.catalog.model import load_model
from simulators.composition.price import iteration
from simulators.composition.replica import Replica
from simulators.kernels.energy import power_at_clock, power_w
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Gemm

H100 = load_gpu("h100_sxm")
REPLICA = Replica(load_model("llama3_1_8b"), H100, load_cluster("dgx_h100"))
PROMPT, DECODE = prefill_step(1.0, 4096.0), decode_step(8.0, 1024.0)


def taken(replica: Replica, step: Step) -> tuple[float, float]:
    """Return seconds and joules of one iteration."""
    found = iteration(replica, step)
    return float(np.sum(found.latency_s)), float(np.sum(found.energy_j))


def test_lower_clock_slows_prefill_more_than_decode() -> None:
    slow = replace(REPLICA, gpu=with_clock_share(H100, 0.5))
    assert 1.4 < taken(slow, PROMPT)[0] / taken(REPLICA, PROMPT)[0] < 2.1
    assert 1.0 <= taken(slow, DECODE)[0] / taken(REPLICA, DECODE)[0] < 1.3
    assert taken(slow, DECODE)[1] < taken(REPLICA, DECODE)[1]


@pytest.mark.parametrize("step", [PROMPT, DECODE])
def test_highest_clock_is_fastest(step: Step) -> None:
    times = [
        taken(replace(REPLICA, gpu=with_clock_share(H100, s)), step)[0]
        for s in (0.4, 0.6, 0.8, 1.0)
    ]
    assert times == sorted(times, reverse=True)


def test_power_stays_below_the_power_limit() -> None:
    seconds, joules = taken(replace(REPLICA, power_limit_w=350.0), PROMPT)
    assert joules / seconds <= 350.0
    assert seconds > taken(REPLICA, PROMPT)[0]
    assert taken(replace(REPLICA, power_limit_w=2 * H100.tdp_w), PROMPT) == taken(REPLICA, PROMPT)


@pytest.mark.parametrize("limit_w", [120.0, 200.0, 300.0])
@pytest.mark.parametrize("clock_scale", [1.0, 1.5])
@pytest.mark.parametrize("step", [PROMPT, DECODE])
def test_mean_power_keeps_a_low_limit(limit_w: float, clock_scale: float, step: Step) -> None:
    faster = what_if(H100, clock_scale=clock_scale)
    seconds, joules = taken(replace(REPLICA, gpu=faster, power_limit_w=limit_w), step)
    assert joules / seconds <= limit_w * (1.0 + 1e-9)


def test_dynamic_power_falls_faster_than_the_clock() -> None:
    product = Gemm(name="product", m=8192.0, n=8192.0, k=8192.0, dtype="bf16")
    seconds = np.array([4.0 * 8192.0**3 / H100.peak("bf16")])  # half of the peak
    full, held = (
        power_w(product, gpu, seconds / gpu.clock_share)[0]
        for gpu in (H100, with_clock_share(H100, 0.8))
    )
    assert held < 0.8 * full
    assert power_at_clock(0.8) < 0.8
    assert at_full_clock(with_clock_share(H100, 0.8)).peak("bf16") == pytest.approx(
        H100.peak("bf16")
    )
