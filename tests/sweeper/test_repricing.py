"""Costs are derived from stored rows: a new price list needs no simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from simulators.core.columns import numbers
from simulators.core.contract import Reprices, load_simulator
from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.query.scenarios import repriced, unpriced
from sweeper.report.answers import latest
from sweeper.space.design_space import DesignSpace
from sweeper.sweep import Sweep
from tests.toys import rented

SPACE = """\
simulator: tests.toys.rented
axes: {box: [a, b, z], boxes: [1, 4]}
"""


@pytest.fixture
def swept(workplace: Path) -> Path:
    """A folder in which a small sweep has been run in one price list."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(SPACE)
    assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    return workplace


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where something is simulated."""

    def fails(*_: object) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr(rented.Rented, "evaluate", fails)


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main([*command.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("swept", "idle")
def test_price_lists_are_compared_without_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed("pareto toy --min usd --prices fair,dear", capsys)
    assert {(row["prices"], row["box"], row["usd"]) for row in rows} == {
        ("fair", "a", 1.0),
        ("dear", "a", 2.0),
    }
    assert latest("toy", "outputs").in_prices("dear").status == {"ok": 6}
    best = printed("query toy cheapest usd --slo speed>=2 --prices fair,dear", capsys)
    assert [(row["prices"], row["usd"]) for row in best] == [("fair", 2.0), ("dear", 4.0)]


@pytest.mark.usefixtures("swept", "idle")
def test_space_with_another_price_list_reuses_results(capsys: pytest.CaptureFixture[str]) -> None:
    command = "+space=toy plot=false engine=inline output=json"
    capsys.readouterr()
    assert main([*command.split(), "space.axes.prices=[dear,fair]"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["evaluated"] == 0
    assert found["given"] == ["prices"]
    assert [row["prices"] for row in found["knees"]] == ["dear", "fair"]


@pytest.mark.usefixtures("swept", "idle")
def test_costs_use_the_current_price_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(rented.LISTS["fair"], "a", 0.25)
    rows = printed("pareto toy --min usd", capsys)
    assert [row["usd"] for row in rows] == [0.25]


def test_prices_are_not_part_of_the_point_key() -> None:
    plain = DesignSpace.of("tests.toys.rented", boxes=[1, 2])
    several = DesignSpace.of("tests.toys.rented", boxes=[1, 2], prices=["dear", "fair"])
    assert unpriced(several).axes == plain.axes
    rows = pl.LazyFrame(
        {"box": ["a", "z"], "boxes": [4, 1], "speed": [2.0, None], "usd": [9.0, 9.0], "prices": ""}
    )
    found = repriced(rows, several).select("prices", "usd").collect().rows()
    assert found == [("dear", 4.0), ("dear", None), ("fair", 2.0), ("fair", None)]
    with pytest.raises(UserError, match="prices apply to results; write it in `where`"):
        unpriced(DesignSpace.of("tests.toys.rented", constraints=["prices = 'dear'"]))


def test_notebook_queries_accept_two_price_lists(workplace: Path) -> None:
    space = DesignSpace.of("tests.toys.rented", boxes=[1, 2], prices=["dear", "fair"])
    rows = Sweep.of(space, outputs=str(workplace), engine="inline").run().collect()
    assert dict(rows.filter(boxes=1).select("prices", "usd").rows()) == {"dear": 2.0, "fair": 1.0}


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("serving", {"model": "gpt2", "gpu": ["l4", "mi210"], "fidelity": "analytic", "qps": None}),
        ("serving", {"model": "gpt2", "gpu": "l4", "requests": 20, "replicas": [1, 3]}),
        ("training", {"model": "gpt2", "gpu": ["l4", "h100_sxm"], "batch": 8, "dtype": "fp16"}),
    ],
)
def test_simulators_derive_costs_from_metric_columns(name: str, axes: dict[str, Any]) -> None:
    simulator = load_simulator(name)
    assert isinstance(simulator, Reprices)
    space = DesignSpace.of(name, prices=["owned", "public_cloud"], **axes)
    every = space.points(range_ := pl.int_range(len(space), eager=True).to_numpy())
    results = simulator.evaluate(space.batch(range_))
    rows = every.hstack(pl.DataFrame(pl.from_arrow(results)))
    assert rows["status"].cast(pl.String).eq("ok").any()
    again = repriced(rows.filter(prices="owned").lazy(), space).collect()
    stated = pl.concat([rows.filter(prices=p) for p in ("owned", "public_cloud")]).fill_nan(None)
    for metric in simulator.cost_metrics:
        assert again[metric].is_null().equals(stated[metric].is_null()), metric
        assert (again[metric] / stated[metric] - 1.0).abs().fill_null(0.0).max() < 1e-12, metric
    assert numbers(results, simulator.cost_metrics[0]).any()
