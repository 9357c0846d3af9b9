"""Options of a group are axes with dotted names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from simulators.core.columns import batch_of, points_of
from simulators.core.errors import UserError
from simulators.core.fields import check_point, columns_of, point_from, values_of
from sweeper.__main__ import main
from sweeper.commands.setup import grouped
from sweeper.space.design_space import space_of
from tests.toys.grouped import Drafting, GroupedPoint

GROUPED = "tests.toys.grouped"
AXES: list[dict[str, Any]] = [
    {"tp": [1, 2], "drafting": {"method": ["eagle", "mtp"], "num_tokens": "1..3"}},
    {"tp": [1, 2], "drafting.method": ["eagle", "mtp"], "drafting.num_tokens": "1..3"},
]


def run(command: str) -> int:
    return main(shlex.split(command))


def test_dotted_columns_build_the_same_point() -> None:
    names = [column.name for column in columns_of(GroupedPoint)]
    assert names == ["tp", "drafting.method", "drafting.num_tokens"]
    point = GroupedPoint(tp=2, drafting=Drafting(method="mtp"))
    assert point_from(GroupedPoint, {"tp": 2, "drafting.method": "mtp"}) == point
    assert point_from(GroupedPoint, values_of(point)) == point
    assert points_of(GroupedPoint, batch_of(GroupedPoint, values_of(point))) == [point]


def test_rule_of_a_grouped_option_names_the_option() -> None:
    with pytest.raises(UserError, match=r"drafting\.num_tokens is -1; it must be at least 0"):
        check_point(GroupedPoint(drafting=Drafting(num_tokens=-1)))


@pytest.mark.parametrize("axes", AXES, ids=["nested", "dotted"])
def test_axis_may_be_written_nested_or_dotted(axes: dict[str, Any]) -> None:
    space = space_of(
        {
            "simulator": GROUPED,
            "axes": axes,
            "derived": {"passes": "drafting.num_tokens + 1"},
            "constraints": ["drafting.method = 'mtp' OR drafting.num_tokens <= 2"],
            "when": {"drafting.num_tokens": "drafting.method != 'none'"},
        }
    )
    assert space.varied == ("tp", "drafting.method", "drafting.num_tokens")
    assert (space.size, len(space) - sum(space.removed().values())) == (12, 10)
    assert space.derived_type("passes") == "int64"


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"drafting": "mtp"}, "is a group of options; write drafting.method, drafting.num_tokens"),
        ({"drafting.methd": "mtp"}, "did you mean 'drafting.method'?"),
        ({"drafting": {"methd": "mtp"}}, "did you mean 'drafting.method'?"),
        ({"tp": {"from": 1}}, "axis 'tp' is a mapping"),
    ],
)
def test_error_in_a_grouped_axis_names_the_option(axes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        space_of({"simulator": GROUPED, "axes": axes})
    assert complaint in str(caught.value)


SERVING = {"model": "llama3_1_8b", "gpu": "h100_sxm"}


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"speculation.acceptance": "0.7"}, "speculation.method is nothing"),
        ({"lora.rank": [16, 32]}, "lora.adapters is 0"),
        ({"arrivals.clients": 8}, "set arrivals.process to closed"),
        ({"client.think_s": 2.0}, "arrivals.process is poisson and sessions.turns is 1"),
        ({"kv_tiers.eviction": "lfu"}, "set cache.prefix_host_bytes or kv_tiers.nvme_bytes"),
    ],
)
def test_option_of_a_feature_that_no_design_has_is_refused(
    axes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match="has no effect") as caught:
        space_of({"simulator": "serving", "axes": {**SERVING, **axes}})
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "axes",
    [
        {"speculation.method": ["nothing", "mtp"], "speculation.num_draft_tokens": [1, 2]},
        {"lora.adapters": [0, 8], "lora.rank": 32},
        {"arrivals.process": "closed", "arrivals.clients": 8, "client.think_s": 2.0},
        {"sessions.turns": 3, "client.think_s": 2.0},
        {"speculation.num_draft_tokens": 3, "arrivals.clients": 64},
    ],
)
def test_option_of_a_feature_of_some_designs_is_accepted(axes: dict[str, Any]) -> None:
    assert space_of({"simulator": "serving", "axes": {**SERVING, **axes}}).size >= 1


def test_sweep_over_grouped_options_runs_and_is_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spaces").mkdir()
    Path("spaces/draft.yaml").write_text(
        f"# Which?\nsimulator: {GROUPED}\naxes: {{tp: [1, 2], drafting: {{method: [none, mtp]}}}}\n"
        "where: drafting.num_tokens < 9\nobjectives: {time_s: min, tp: min}\n"
    )
    words = "+space=draft space.axes.drafting.num_tokens=[2,4] engine=inline"
    assert run(f"{words} output=json") == 0
    front = json.loads(capsys.readouterr().out)["front"]
    assert {row["drafting.method"] for row in front} == {"mtp"}
    (part,) = Path("outputs/draft/results").rglob("*.parquet")
    assert {"drafting.method", "drafting.num_tokens"} <= set(pl.read_parquet_schema(part))
    for command, said in (
        ("pareto draft --where \"drafting.method = 'mtp'\" --per drafting.num_tokens", "mtp"),
        ("query draft cheapest --where 'drafting.num_tokens <= 2'", "drafting.method"),
        ("query draft best-per time_s --level drafting.num_tokens", "drafting.num_tokens"),
        ("query draft sensitivity", "drafting.method"),
        ("show draft knee", "drafting.method"),
        ("query draft near knee", "drafting"),
    ):
        assert run(command) == 0, command
        assert said in capsys.readouterr().out, command
    assert run("+space=draft space.axes.drafting.methd=mtp") == 2
    assert "did you mean 'drafting.method'?" in capsys.readouterr().err
    assert run("+space=draft space.axes.drafting=mtp") == 2
    assert "is a group of options" in capsys.readouterr().err


def test_schema_of_a_group_is_a_mapping() -> None:
    found = grouped({"tp": {}, "drafting.method": {"type": "string"}})
    assert found["drafting"]["properties"] == {"method": {"type": "string"}}
