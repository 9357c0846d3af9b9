"""Stages on several kinds of GPUs: layers follow speed, and one kind is as any pipeline."""

from __future__ import annotations

import pytest

from lab.stages.mixed import mixed_step
from simulators.core.errors import Infeasible, UserError
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR

BASE = TrainingPoint(
    model="llama3_1_8b", gpu="h100_sxm", pp=4, dp=2, batch=64, sequence=4096, zero=1
)


def test_stages_of_one_kind_are_a_pipeline_as_any():
    [row] = SIMULATOR.evaluate(batch_of([BASE])).to_pylist()
    mixed = mixed_step(BASE, ["h100_sxm"] * 4)
    assert sum(mixed.layers) == 32
    assert mixed.layers[3] < 8  # the head makes room
    assert 0.85 * row["step_s"] < mixed.step_s <= row["step_s"]


def test_slow_gpus_get_fewer_layers_and_a_step_lies_between():
    fast, slow = (mixed_step(BASE, [gpu] * 4) for gpu in ("h100_sxm", "a100_sxm"))
    mixed = mixed_step(BASE, ["h100_sxm"] * 2 + ["a100_sxm"] * 2)
    assert fast.step_s < mixed.step_s < slow.step_s
    assert min(mixed.layers[:2]) > max(mixed.layers[2:])


def test_what_cannot_be_mixed_is_told():
    with pytest.raises(UserError, match="4 pipeline stages need as many gpus, 2 are named"):
        mixed_step(BASE, ["h100_sxm", "a100_sxm"])
    with pytest.raises(Infeasible, match="hold"):
        mixed_step(BASE, ["a10"] * 4)
