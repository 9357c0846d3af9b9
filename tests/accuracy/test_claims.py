"""Every claim of a room is met: its own limit, or a budget where one is set beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.core.contract import Check

Lines = dict[str, Check]

BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text())

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "room", ["collectives", "composition", "dataflow", "edge", "modern", "serving", "training"]
)
def test_every_line_stays_within_its_budget(claimed: Callable[[str], Lines], room: str) -> None:
    found, budgets = claimed(room), BUDGETS[room]
    assert set(budgets) <= set(found)
    wrong = [
        f"{check.name}: {check.value} {check.unit}, {check.note}"
        for check in found.values()
        if check.value is not None
        and (check.value > budgets[check.name] if check.name in budgets else check.ok is False)
    ]
    assert not wrong, "\n".join(wrong)
    assert any(check.ok for check in found.values())


@pytest.mark.parametrize(
    "name", ["seen NVIDIA boards, unfused", "T4", "fused by a compiler", "TP4, four GPUs"]
)
def test_ours_is_nearer_than_the_neural_peer(claimed: Callable[[str], Lines], name: str) -> None:
    check = claimed("composition")[f"composition/graphs: {name}"]
    assert check.value is not None
    assert check.peer is not None
    assert check.value < check.peer
