"""Whole fp32 models against measured ones whose graphs nothing was fitted to."""

from __future__ import annotations

import pytest

from simulators.core.contract import Check

# Mean error in percent that a line may have: the contract's, or what is reached where that is more.
BUDGETS = {
    "seen NVIDIA boards, unfused": 4.5,
    "h100_sxm, 10 rows an operator": 3.0,
    "a100_pcie_80gb, 10 rows an operator": 12.5,
    "a100_pcie_80gb, 10 rows an operator, runs without fresh allocations": 3.0,
    "T4": 8.0,
    "MI210 and MI250 as MI210": 7.0,
    "fused by a compiler": 4.5,
    "TP4, four GPUs": 4.0,
    "DP4, four GPUs": 4.0,
    "PP4, four GPUs": 6.0,
}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(composition: dict[str, Check]) -> dict[str, Check]:
    return {name.removeprefix("composition/graphs: "): c for name, c in composition.items()}


@pytest.mark.parametrize("name", BUDGETS)
def test_whole_models_stay_within_their_budgets(found: dict[str, Check], name: str) -> None:
    value = found[name].value
    assert value is not None
    assert value <= BUDGETS[name], f"{value} %, {found[name].note}"


@pytest.mark.parametrize(
    "name", ["seen NVIDIA boards, unfused", "T4", "fused by a compiler", "TP4, four GPUs"]
)
def test_ours_is_nearer_than_the_neural_peer(found: dict[str, Check], name: str) -> None:
    peer = float(found[name].note.split("neusight ")[1].split(" ")[0])
    value = found[name].value
    assert value is not None
    assert value < peer
