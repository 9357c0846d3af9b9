"""Serving on a custom accelerator in place of GPU kernels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from simulators.core.errors import UnknownNameError
from simulators.core.folder import ACCELERATORS
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate

MODEL = """
source = "a test"
layers = 2
hidden = 64
heads = 2
kv_heads = 2
head_dim = 32
ffn = 128
vocab = 512
max_context = 32
"""


@pytest.fixture
def small(tmp_path: Path) -> ServingPoint:
    model = tmp_path / "small.toml"
    model.write_text(MODEL)
    return ServingPoint(
        model=str(model), gpu="t4", requests=20, qps=100.0, prompt_tokens=12, output_tokens=8
    )


@pytest.mark.slow
def test_slower_array_has_a_higher_tpot(small: ServingPoint, tmp_path: Path) -> None:
    sheet = ACCELERATORS.find("tpu_like").read_text()
    slower = tmp_path / "slower.toml"
    slower.write_text(sheet.replace("clock_hz = 700e6", "clock_hz = 7e4"))
    fast, slow = (
        simulate(dataclasses.replace(small, accelerator=name)) for name in ("tpu_like", str(slower))
    )
    assert fast.completed_requests == slow.completed_requests == 20
    assert 2.0 * fast.tpot_mean_s < slow.tpot_mean_s
    assert fast.ttft_mean_s < slow.ttft_mean_s
    assert fast.measured_share == fast.fitted_share == 0.0
    assert fast != simulate(small)


def test_accelerator_file_is_a_dependency_and_unknown_names_are_refused(
    small: ServingPoint,
) -> None:
    assert any(path.stem == "tpu_like" for path in SIMULATOR.reads("accelerator", "tpu_like"))
    with pytest.raises(UnknownNameError, match="did you mean 'tpu_like'"):
        simulate(dataclasses.replace(small, accelerator="tpu_lik"))
