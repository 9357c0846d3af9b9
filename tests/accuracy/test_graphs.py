"""Whole fp32 models against measured ones whose graphs nothing was fitted to."""

from __future__ import annotations

import pytest

from simulators.composition.checks_graphs import checks
from simulators.core.calibration import reference_folder

# Mean error in percent that a line may have: the contract's, or what is reached where that is more.
BUDGETS = {
    "seen NVIDIA boards, unfused": 4.5,
    "h100_sxm, 10 rows an operator": 3.3,
    "a100_pcie_80gb, 10 rows an operator": 12.5,
    "a100_pcie_80gb, 10 rows an operator, runs without fresh allocations": 3.0,
    "T4": 8.0,
    "MI210 and MI250 as MI210": 7.0,
    "fused by a compiler": 4.5,
    "TP4, four GPUs": 4.0,
    "DP4, four GPUs": 4.0,
    "PP4, four GPUs": 6.0,
}


@pytest.mark.slow
def test_whole_models_stay_within_their_budgets() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    found = {check.name.removeprefix("composition/graphs: "): check for check in checks(reference)}
    for name, budget in BUDGETS.items():
        value = found[name].value
        assert value is not None
        assert value <= budget, f"{name}: {value} %, {found[name].note}"


@pytest.mark.slow
def test_ours_is_nearer_than_the_neural_peer_where_both_know_as_much() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    for check in checks(reference):
        if check.name.endswith(("seen NVIDIA boards, unfused", "T4", "fused by a compiler")):
            peer = float(check.note.split("neusight ")[1].split(" ")[0])
            assert check.value is not None
            assert check.value < peer
