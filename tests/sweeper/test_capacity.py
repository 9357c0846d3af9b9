"""A capacity axis is bisected to the largest value that meets the objective."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from simulators.core.errors import UserError
from sweeper.engines import load_engine
from sweeper.samplers._axis_searches import capacity_search
from sweeper.space.axes import CAPACITY_STEP
from sweeper.space.design_space import space_of
from sweeper.space.space_file import parse_space
from sweeper.store.keys import define
from sweeper.store.store import Part, Store
from sweeper.sweep import Sweep

# Cost is n * (x - 3)^2 at y = 4: a cost of at most 100 is met up to x = 3 + sqrt(100 / n).
WRITTEN: dict[str, Any] = {
    "simulator": "tests.toys.quadratic",
    "axes": {"n": [1, 4, 13, 25], "x": "capacity 3..1000", "label": ["plain", "plainer"]},
    "slo": "cost_usd <= 100",
    "objectives": {"x": "max", "n": "max"},
}


def answered(folder: Path) -> tuple[pl.DataFrame, list[Part]]:
    """Run the sweep and return all its probes."""
    space = space_of(WRITTEN)
    bisection = capacity_search(parse_space(WRITTEN), space)
    assert bisection is not None
    store = Store(str(folder / "capacity"), define(space))
    parts: list[Part] = []
    sweep = Sweep(space, bisection, load_engine("inline"), store, {"x": "max"})
    return sweep.run(parts.append).collect(), parts


def test_bisection_finds_the_largest_value_that_meets_the_objective(tmp_path: Path) -> None:
    probes, _ = answered(tmp_path)
    best = probes.filter(pl.col("cost_usd") <= 100).group_by("n").agg(pl.col("x").max())
    found = dict(best.iter_rows())
    for n in (1, 4, 25):
        limit = 3 + math.sqrt(100 / n)
        assert limit / CAPACITY_STEP < found[n] <= limit


def test_bisection_takes_logarithmic_steps_and_stops_at_infeasible_designs(
    tmp_path: Path,
) -> None:
    probes, _ = answered(tmp_path)
    ladder = len(space_of(WRITTEN).axes["x"])
    per_design = probes.group_by("n", "label").len()
    assert per_design["len"].max() <= math.ceil(math.log2(ladder + 1))
    assert per_design.filter(pl.col("n") == 13)["len"].to_list() == [1, 1]


def test_found_capacity_is_reused(tmp_path: Path) -> None:
    first, _ = answered(tmp_path)
    again, parts = answered(tmp_path)
    assert parts == []
    assert again.sort(again.columns).equals(first.sort(first.columns))


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"slo": None}, "needs an `slo:`"),
        ({"axes": {"x": "1..4"}}, "write an axis as capacity"),
        ({"axes": {"x": "capacity 1..4", "y": "capacity 1..4"}}, "only one axis"),
        ({"axes": {"x": "capacity 4..1"}}, "runs backwards"),
        ({"axes": {"x": "capacity four"}}, "capacity 0.1..64"),
        ({"slo": "cost_us <= 1"}, "did you mean 'cost_usd'"),
        ({"constraints": ["x <= 30"]}, "no constraint can name it: x <= 30"),
        ({"when": {"x": "n = 1"}}, "no constraint can name it"),
        ({"derived": {"twice": "2 * x"}, "constraints": ["twice > n"]}, "no constraint can name"),
    ],
)
def test_capacity_errors_raise_a_user_error(change: dict[str, Any], fragment: str) -> None:
    written = {**WRITTEN, **change}
    with pytest.raises(UserError, match=fragment):
        capacity_search(parse_space(written), space_of(written))
