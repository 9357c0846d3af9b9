"""Runs of VIDUR and the survey's table, event by event; lengths against rows nobody fitted."""

from __future__ import annotations

import pytest

from simulators.core.calibration import reference_folder
from simulators.serving.checks import engine_checks

# Relative errors against real runs; what is aimed at is 0.10 everywhere. Nothing was measured on
# the RTX 4090: its kernels borrow a sibling's efficiencies.
BUDGETS = {
    "vllm RTX4090__Llama-3.1-8B mean TTFT": 0.35,
    "vllm RTX4090__Llama-3.1-8B median TPOT": 0.15,
    "vllm RTXPRO6000__Llama-3.1-8B mean TTFT": 0.1,
    "vllm RTXPRO6000__Llama-3.1-8B median TPOT": 0.1,
}


@pytest.mark.slow
def test_reference_runs_are_reproduced() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no reference runs: set SWEEPER_REFERENCE to a reference folder")
    found = engine_checks(reference, "test")
    wrong = [
        f"{c.name}: {c.value} {c.unit}, {c.note}"
        for c in found
        if c.value is not None and (c.value > BUDGETS[c.name] if c.name in BUDGETS else not c.ok)
    ]
    assert not wrong, "\n".join(wrong)
    assert any(c.ok for c in found)
