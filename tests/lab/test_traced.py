"""A step on several GPUs from the operators of one."""

from __future__ import annotations

import pytest

from lab.stages.traced import (
    BACKWARD,
    BUCKET_BYTES,
    FORWARD,
    UPDATE,
    Cut,
    TimedOperator,
    TracedStep,
    traced_step,
)
from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives.price import collective_time
from simulators.core.errors import UserError

H100, DGX = load_gpu("h100_sxm"), load_cluster("dgx_h100")
TRACE = [
    *[TimedOperator(phase=FORWARD, seconds=0.25, output_bytes=1e6, is_cut=True)] * 8,
    *[TimedOperator(phase=BACKWARD, seconds=0.5, gradient_bytes=BUCKET_BYTES)] * 8,
    TimedOperator(phase=UPDATE, seconds=1.0),
]


def step(**cut: int) -> TracedStep:
    return traced_step(TRACE, Cut(**cut), gpu=H100, cluster=DGX)


def test_one_gpu_takes_the_sum_of_its_operators() -> None:
    assert step() == TracedStep(step_s=7.0, compute_s=7.0, messages_s=0.0, exposed_s=0.0)


def test_replicas_show_the_last_bucket_alone_where_the_others_hide() -> None:
    found, of_one = (
        step(dp=8),
        collective_time("all_reduce", BUCKET_BYTES, ranks=8, gpu=H100, cluster=DGX, dtype="fp32"),
    )
    assert found.compute_s == 7.0
    assert found.exposed_s == pytest.approx(float(of_one.time_s))
    assert found.messages_s == pytest.approx(8 * float(of_one.time_s))
    assert found.step_s == pytest.approx(7.0 + found.exposed_s)


def test_tensor_ranks_share_what_can_be_cut() -> None:
    assert step(tp=4).compute_s == pytest.approx(0.5 + 4.0 + 1.0)


def test_even_stages_take_the_slots_of_their_pipeline() -> None:
    found = step(pp=4, micro_batches=8)
    assert found.step_s == pytest.approx((8 + 3) * 6.0 / 32 + 1.0 / 4, rel=1e-3)


def test_more_stages_than_operators_are_refused() -> None:
    with pytest.raises(UserError, match="do not make 16 stages"):
        step(pp=16)
