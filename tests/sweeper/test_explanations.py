"""Explanations of a design, comparison of two designs, and validation by a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulators.core.contract import Contribution
from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.commands.design import contributions, grouped
from sweeper.report.answers import latest

SPACE = """\
simulator: tests.toys.layered
axes: {work: [1e9, 2e9, 4e9], data: [1e6, 3e6]}
"""


@pytest.fixture
def swept(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder in which a small sweep has been run."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "layers.yaml").write_text(SPACE)
    (workplace / "spaces" / "fewer.yaml").write_text(SPACE.replace("1e9, ", ""))
    (workplace / "spaces" / "plane.yaml").write_text(
        "simulator: tests.toys.quadratic\naxes: {x: 1..3}\n"
    )
    for name in ("layers", "fewer", "plane"):
        assert main([f"+space={name}", "plot=false", "engine=inline"]) == 0
    capsys.readouterr()
    return workplace


def printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(command) == 0
    return capsys.readouterr().out


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(command) == 2
    return capsys.readouterr().err


def test_explain_prints_time_shares_and_improvements(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(["explain", "layers", "knee"], capsys)
    assert "forward: 2 ms, 130 mJ" in text
    assert "update: 1 µs, 1 MB resident" in text
    assert "50.0%" in text
    assert "250 GFLOP/s" in text  # 1 GFLOP in 1 ms, on four devices
    assert "25 MB/s" in text
    assert "Time by evidence: 50 % measured, 50 % fitted" in text
    assert "latency_s 1.8 ms (-10.0%)" in text  # a clock of 1.25
    found = json.loads(printed(["explain", "layers", "knee", "--json"], capsys))
    _, row = latest("layers", "outputs").design("knee")
    assert sum(c["time_s"] for c in found) == row["latency_s"]
    assert sum(c["energy_j"] for c in found) == row["energy_j"]


def test_timeline_spans_nest_without_overlap(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(["explain", "layers", "knee", "--trace", "trace.json"], capsys)
    events = [
        e for e in json.loads(Path("trace.json").read_text())["traceEvents"] if e["ph"] == "X"
    ]
    phases = [e for e in events if e["name"] in ("forward", "update")]
    assert [e["name"] for e in events] == ["forward", "multiply", "copy", "update", "wait"]
    for phase, inside in zip(phases, (events[1:3], events[4:]), strict=True):
        at = phase["ts"]
        for event in inside:
            assert event["ts"] == pytest.approx(at)
            at = event["ts"] + event["dur"]
        assert at == pytest.approx(phase["ts"] + phase["dur"])
    assert phases[1]["ts"] == pytest.approx(phases[0]["ts"] + phases[0]["dur"])


def test_compare_explains_the_difference_of_two_designs(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = latest("layers", "outputs")
    rows = last.store.scan().collect().sort("latency_s")
    from sweeper.store.keys import keys

    named = keys(last.store.definition, rows)
    text = printed(["compare", "layers", named[0], named[-1]], capsys)
    assert "work" in text
    assert "+249.9%" in text  # 2 ms to 7 ms, but for a microsecond
    assert "Operators whose time differs (+5 ms in total)" in text
    assert text.index("forward: multiply") < text.index("forward: copy")
    same = printed(["compare", "layers", "knee", "knee"], capsys)
    assert "The two designs are the same." in same


def test_a_difference_is_attributed_to_the_options_that_differ(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = latest("layers", "outputs")
    rows = last.store.scan().collect().sort("latency_s")
    from sweeper.store.keys import keys

    named = keys(last.store.definition, rows)
    words = ["compare", "layers", named[0], named[-1], "--explain"]
    found = json.loads(printed([*words, "--json"], capsys))
    for one in found["metrics"]:
        before, after = one["predicted"]
        assert sum(one["shares"].values()) == pytest.approx(after - before)
    assert "Measurements that would confirm the shares" in printed(words, capsys)
    same = printed(["compare", "layers", "knee", "knee", "--explain"], capsys)
    assert "no difference between the two designs" in same
    assert "two keys" in refused(["compare", "layers", "knee", "--explain"], capsys)
    assert "knows no shares" in refused([*words, "--changed", "release"], capsys)


def test_compare_joins_two_sweeps_on_shared_points(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(["compare", "layers", "--against", "fewer"], capsys)
    assert "6 and 4 designs, 4 in both sweeps" in text
    assert "latency_s  +0.0%" in text
    assert "'plane' of 'tests.toys.quadratic'" in refused(
        ["compare", "layers", "--against", "plane"], capsys
    )


def test_mistakes_are_explained(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not report the time of operators" in refused(["explain", "plane", "knee"], capsys)
    assert "no key starts with 'zz'" in refused(["explain", "layers", "zz"], capsys)
    assert "compare takes two keys" in refused(["compare", "layers", "knee"], capsys)
    assert "sweeper writes no deployments" in refused(["export", "layers", "knee"], capsys)


def test_explanation_keeps_rows_with_energy_but_no_time() -> None:
    rows = [
        Contribution(phase="conv1", name="mac", time_s=1.0, energy_j=0.1),
        Contribution(phase="conv1", name="DRAM Inputs", energy_j=0.7),
        Contribution(phase="conv1", name="spad Inputs", energy_j=0.3),
        *(Contribution(phase="conv1", name=f"spad {n}", energy_j=0.001) for n in range(3)),
    ]
    found = [(c.name, c.energy_j) for c in grouped(rows)]
    assert found[:3] == [("mac", 0.1), ("DRAM Inputs", 0.7), ("spad Inputs", 0.3)]
    assert found[3] == ("3 smaller operators", pytest.approx(0.003))


def test_contributions_require_an_explaining_simulator() -> None:
    with pytest.raises(UserError, match="does not report"):
        contributions("tests.toys.quadratic", {"x": 1.0})
