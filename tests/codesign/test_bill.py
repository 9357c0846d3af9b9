"""Cost of dies and devices by hand, and the best device within a budget."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulators.catalog.model import load_model
from simulators.codesign.bill import (
    FILE,
    Budget,
    best_design,
    device_cost,
    die_cost,
    hourly_cost,
)
from simulators.codesign.device import FullLoad
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import read_toml

TABLE = read_toml(FILE)
MODEL = load_model("llama2_70b")
CHAT = FullLoad(prompt=500.0, output=300.0, tpot_s=0.05)
BUDGET = Budget("n3", 1600.0, 1800.0)


def test_die_cost_matches_a_hand_calculation() -> None:
    usd, good = die_cost(100.0, {"wafer_usd": 10_000.0, "defects_per_cm2": 0.1}, TABLE)
    assert good == pytest.approx((1 + 0.1 / 3) ** -3)
    assert usd == pytest.approx(
        10_000.0 / ((math.pi * 22_500 / 100 - 300 * math.pi / 200**0.5) * good)
    )


def test_device_and_hour_match_a_hand_calculation() -> None:
    choices = dict(TABLE["choices"], markup=2.0, server_share=0.5, years=1.0, utilisation=1.0)
    usd = device_cost(1000.0, 8, 900e9, choices)
    assert usd == pytest.approx((1000 + 500 + 480 + 1350) * 2.0 * 1.5)
    assert hourly_cost(8766.0, 1000.0, choices) == pytest.approx(1.0 + 0.1)


def test_more_silicon_and_power_never_slow_the_fastest_device() -> None:
    small, large = (
        best_design(budget, MODEL, CHAT, "tokens_per_s")
        for budget in (BUDGET, replace(BUDGET, area_mm2=2400.0, tdp_w=2700.0))
    )
    assert large.steady.tokens_per_s > small.steady.tokens_per_s
    assert small.dies == 2
    assert large.dies == 3


def test_cheapest_device_meets_the_limit_and_has_an_interval() -> None:
    found = best_design(BUDGET, MODEL, CHAT)
    assert found.steady.step_s <= 0.05
    rate, low, high = found.tokens_per_s
    assert low < rate < high
    assert found.usd_per_mtok == pytest.approx(found.usd_per_hour / 3600 / rate * 1e6)
    fastest = best_design(BUDGET, MODEL, CHAT, "tokens_per_s")
    assert fastest.usd_per_mtok >= found.usd_per_mtok


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="n3"):
        best_design(replace(BUDGET, process="n4p"), MODEL, CHAT)
    with pytest.raises(UserError, match="area_mm2"):
        best_design(replace(BUDGET, area_mm2=0.0), MODEL, CHAT)
    with pytest.raises(Infeasible, match="no device"):
        best_design(replace(BUDGET, area_mm2=15.0), MODEL, CHAT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"area_mm2": 15.0}, "ports of 2 stacks alone take 22 mm2"),
        # Two stacks of HBM3E: 2.4 TB/s at 3.92 pJ per bit.
        ({"tdp_w": 75.0}, "2 stacks of hbm3e alone draw 75 W at full rate"),
    ],
)
def test_budget_without_a_device_names_its_limit(changes: dict[str, float], said: str) -> None:
    with pytest.raises(Infeasible, match=said):
        best_design(replace(BUDGET, **changes), MODEL, CHAT)


def test_load_without_a_device_names_its_limit() -> None:
    with pytest.raises(Infeasible, match="no step is as short as 1 ms"):
        best_design(BUDGET, MODEL, replace(CHAT, tpot_s=1e-3))
    with pytest.raises(Infeasible, match="llama2_70b has 4,096"):
        best_design(BUDGET, MODEL, replace(CHAT, prompt=5000.0))


def test_no_device_draws_more_than_its_limit_for_memory() -> None:
    found = best_design(replace(BUDGET, tdp_w=300.0), MODEL, CHAT, "tokens_per_s")
    assert 8 * found.sheet.hbm_bytes_per_s * 3.92e-12 < 300.0
