"""Given axes define scenarios: results per scenario, or one design for all scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from simulators.core.contract import Direction, given_of, load_simulator
from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.query.fronts import distinct_front, group_fronts
from sweeper.query.pareto import pareto_front
from sweeper.query.scenarios import across, scenarios_of
from sweeper.report.answers import Answers, latest
from sweeper.space.design_space import DesignSpace, given
from sweeper.space.space_file import SpaceConfig

SPACE = """\
simulator: tests.toys.quadratic
axes: {x: [1, 2, 3], y: [1, 2, 3], n: [1, 2]}
given: [y]
"""
COST: dict[str, Direction] = {"usd": "min"}


@pytest.fixture
def swept(workplace: Path) -> Answers:
    """The answers to a small space in which `y` is given."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(SPACE)
    assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    return latest("toy", "outputs")


def test_model_load_and_size_are_given_axes_and_parallelism_is_not() -> None:
    serving = given_of(load_simulator("serving").point)
    assert {"model", "workload", "qps", "prices"} <= set(serving)
    assert not {"gpu", "tp", "replicas", "max_batch", "dtype"} & set(serving)
    assert {"m", "n", "k"} <= set(given_of(load_simulator("kernels").point))
    assert {"size_bytes"} <= set(given_of(load_simulator("collectives").point))
    assert {"network", "layer"} <= set(given_of(load_simulator("dataflow").point))


def test_given_axes_come_from_the_space_or_the_simulator() -> None:
    space = DesignSpace.of("kernels", gpu=["l4", "t4"], op="gemm", m=[1, 2], k=[8, 16])
    assert given(SpaceConfig(), space) == ("m", "k")
    assert given(SpaceConfig(given=["m"]), space) == ("m",)
    assert given(SpaceConfig(given=[]), space) == ()
    assert given(SpaceConfig(), space, ["k"]) == ("m",), "what is made small is chosen"
    with pytest.raises(UserError, match=r"`given` names 'kk', which is no axis; did you mean 'k'"):
        given(SpaceConfig(given=["kk"]), space)


@drawn(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_grouped_fronts_equal_separate_fronts(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, np.float64).reshape(-1, 3)
    groups, values = table[:, 0].astype(np.int64), table[:, 1:]
    kept, ties = group_fronts(values, groups)
    expected: dict[int, int] = {}
    for group in np.unique(groups):
        places = np.flatnonzero(groups == group)
        alone, counts = distinct_front(values[places])
        expected |= dict(zip(places[alone].tolist(), counts.tolist(), strict=True))
    assert dict(zip(kept.tolist(), ties.tolist(), strict=True)) == expected
    assert (np.diff(kept) > 0).all()


def test_many_grouped_fronts_equal_separate_fronts() -> None:
    random = np.random.default_rng(0)
    rows = pl.DataFrame(
        {
            "g": random.integers(300, size=30_000),
            **dict(zip("ab", random.random((2, 30_000)), strict=True)),
        }
    )
    wanted: dict[str, Direction] = {"a": "min", "b": "min"}
    found = pareto_front(rows.lazy(), wanted, per=["g"])
    alone = [pareto_front(one.lazy(), wanted) for one in rows.partition_by("g")]
    assert found.equals(pl.concat(alone).sort("g", "a"))


def test_scenarios_follow_the_axis_order() -> None:
    rows = pl.LazyFrame({"model": ["b", "a", "a"], "qps": [2, 8, 2], "tp": [1, 1, 1]})
    found = scenarios_of(rows, ["model", "qps"], {"model": ["b", "a"], "qps": [8, 2]})
    assert [tuple(s.values()) for s in found] == [("b", 2), ("a", 8), ("a", 2)]


def test_design_for_all_scenarios_qualifies_in_each_scenario() -> None:
    rows = pl.LazyFrame(
        {
            "qps": [1, 2, 1, 2, 1, 2],
            "tp": [1, 1, 2, 2, 4, 4],
            "usd": [1.0, 2.0, 2.0, 3.0, 9.0, None],
            "late": [False, True, False, False, False, False],
        }
    )
    every = across(rows, ["qps"], ["tp"], COST).collect()
    assert dict(every.select("tp", "usd").rows()) == {1: 2.0, 2: 3.0}
    met = across(rows, ["qps"], ["tp"], COST, where="NOT late").collect()
    assert met.select("tp", "usd", "qps").rows() == [(2, 3.0, 2)], "and says where it is worst"
    mean = across(rows, ["qps"], ["tp"], COST, how="mean").collect()
    assert dict(mean.select("tp", "usd").rows()) == {1: 1.5, 2: 2.5}


def test_scenario_results_equal_separate_sweeps(swept: Answers) -> None:
    assert swept.given == ("y",)
    assert [s["y"] for s in swept.scenarios] == [1.0, 2.0, 3.0]
    for one in swept.each():
        assert not one.given
        assert one.space.size == 6
        assert "y" not in one.space.varied
        alone = pareto_front(
            swept.results.filter(pl.col("y") == one.scenario["y"]), swept.objectives
        )
        assert one.front.drop("key").equals(alone)
    assert len(swept.knees) == 3
    assert swept.usual.scenario == {"y": 2.0}
    assert swept.at("y=3").best["y"] == 3.0
    assert swept.at("y=3 m").scenario == {"y": 3.0}, "as it is printed"


def test_unknown_given_axis_is_refused(swept: Answers) -> None:
    with pytest.raises(UserError, match="'x' is not a scenario axis"):
        swept.at("x=1")
    with pytest.raises(UserError, match="y does not take the value '7'"):
        swept.at("y=7")


def test_commands_report_per_scenario_or_overall(
    swept: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(command: str) -> Any:
        capsys.readouterr()
        assert main([*command.split(), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    fronts = said("pareto toy")
    assert {row["y"] for row in fronts} == {1.0, 2.0, 3.0}
    assert {row["y"] for row in said("pareto toy --at y=2")} == {2.0}
    worst = said("pareto toy --min cost_usd --across")
    costs = swept.results.group_by("x", "n").agg(pl.col("cost_usd").max()).collect()
    assert [row["cost_usd"] for row in worst] == [costs["cost_usd"].min()]
    shares = said("query toy sensitivity cost_usd")
    assert len(shares) == 6
    assert all(row["axis"] != "y" for row in shares)
    assert [row["y"] for row in said("query toy cheapest cost_usd --slo gain>=0")] == [
        1.0,
        2.0,
        3.0,
    ]
    assert all(row["axis"] != "y" for row in said("query toy near"))
    ended = json.loads((swept.folder / "summary.json").read_text())
    assert ended["given"] == ["y"]
    assert len(ended["knees"]) == 3


@pytest.mark.usefixtures("swept")
def test_comparing_designs_of_two_scenarios_warns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of simulators that say which of their fields are given."""
    Path("spaces/rent.yaml").write_text(
        "simulator: tests.toys.rented\naxes: {box: [a, b], prices: [fair, dear]}\n"
    )
    assert main(["+space=rent", "plot=false", "engine=inline"]) == 0
    rows = latest("rent", "outputs").named(latest("rent", "outputs").results.collect())
    fair, dear = (rows.filter(box="a", prices=p)["key"][0] for p in ("fair", "dear"))
    other = rows.filter(box="b", prices="fair")["key"][0]
    capsys.readouterr()
    assert main(["compare", "rent", fair, dear]) == 0
    assert "inputs differ (prices fair and dear)" in capsys.readouterr().out
    assert main(["compare", "rent", fair, other]) == 0
    assert "inputs differ" not in capsys.readouterr().out
