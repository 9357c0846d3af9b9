"""Scenarios: SQL figures over single rows, bands and intervals, and the shipped scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import scenarios as command
from lab.scenarios import Outcome, read_scenario
from simulators.core.errors import UserError

BOWL = """# How far the corner is
simulator: tests.toys.quadratic
axes: {x: [1, 3, 5], n: [1, 13]}
scenario:
  id: B1.2
  cases:
    left: x = 1 AND n = 1
    best: {min: cost_usd}
    wide: {of: far, max: gain}
  beside:
    far: {simulator: tests.toys.quadratic, axes: {x: [7, 9]}}
  targets:
    cost: {sql: left_cost_usd, unit: $, band: [3, 5], basis: measured, why: four}
    ratio: {sql: wide_gain / best_gain, band: [0, 2], basis: derived, why: a guess,
            miss: It is three.}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "b1_2.yaml"
    file.write_text(text)
    return file


def answered(folder: Path, text: str = BOWL) -> Outcome:
    return read_scenario(written(folder, text)).answer(folder / "outputs")


def test_figures_are_sql_expressions_over_named_rows(tmp_path: Path) -> None:
    outcome = answered(tmp_path)
    cost, ratio = outcome.figures
    assert (cost.value, cost.in_band) == (4.0, True)
    assert (ratio.value, ratio.in_band) == (36 / 12, False)
    assert outcome.supported
    assert not outcome.in_band


def test_figure_without_evidence_has_no_band_and_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    i = BOWL.index("    cost: {")
    file = written(tmp_path, BOWL[:i] + "    cost: {sql: left_cost_usd}\n")
    command.main([str(file), "--outputs", str(tmp_path / "outputs")])
    assert "1 of 1 scenarios are supported; no band has evidence." in capsys.readouterr().out
    command.main([str(file), "--outputs", str(tmp_path / "outputs"), "--json"])
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["in_band"], one["metrics"]["cost"]["band"]) == (None, None)


def test_infeasible_scenario_row_has_a_reason(tmp_path: Path) -> None:
    outcome = answered(tmp_path, BOWL.replace("left: x = 1 AND n = 1", "left: x = 1 AND n = 13"))
    assert not outcome.supported
    assert outcome.reason.startswith("case 'left' has no answer")


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("basis: measured", "basis: hoped", "`targets[...].basis`"),
        ("band: [3, 5]", "band: [5, 3]", "`band` is two numbers, the lower first"),
        ("unit: $", "units: $", "unknown field `units`"),
        (", why: four", "", "needs `basis:` and `why:`"),
        ("of: far", "of: near", "there is no space 'near' beside"),
        ("left: x = 1 AND n = 1", "left: 5", "`scenario:` `cases"),
        ("id: B1.2", "name: B1.2", "unknown field `name`"),
    ],
)
def test_scenario_errors_raise_a_user_error(tmp_path: Path, was: str, now: str, said: str) -> None:
    with pytest.raises(UserError, match=r"b1_2\.yaml") as raised:
        read_scenario(written(tmp_path, BOWL.replace(was, now)))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("left_cost_usd", "left_cost", "no column 'left_cost'; did you mean 'left_cost_usd'?"),
        ("left_cost_usd", "AVG(left_cost_usd)", "no function of single values"),
        ("left: x = 1 AND n = 1", "left: n = 1", "is one row, and 3 meet its condition"),
    ],
)
def test_uncomputable_scenario_is_marked_unsupported(
    tmp_path: Path, was: str, now: str, said: str
) -> None:
    assert said in answered(tmp_path, BOWL.replace(was, now)).reason


def test_coverage_page_names_missing_capabilities_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [str(written(tmp_path, BOWL)), "--outputs", str(tmp_path / "outputs")]
    assert command.main(words) == 0
    printed = capsys.readouterr().out
    assert "! ratio" in " ".join(printed.split())
    assert "B1.2 ratio lies outside of its band (derived: a guess). It is three." in printed
    assert "1 of 1 scenarios are supported, 0 in band: 1 of 2 figures" in printed
    assert max(map(len, printed.splitlines())) <= 80
    command.main([*words, "--json"])
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["id"], one["supported"], one["in_band"]) == ("B1.2", True, False)
    assert one["metrics"]["cost"]["band"] == [3.0, 5.0]


def test_missing_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_REFERENCE", str(tmp_path))
    outcome = answered(tmp_path, BOWL.replace("n: [1, 13]", "n: [1, 13], label: reference:a.csv"))
    assert outcome.reason.startswith("a.csv is not here; $SWEEPER_REFERENCE names the folder")


def test_scenarios_without_tables_run_when_tables_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SWEEPER_REFERENCE", raising=False)
    assert command.main(["I5.2", "T3.1", "--outputs", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("conversation.parquet is not here; $SWEEPER_REFERENCE names the folder") == 1
    assert "1 of 2 scenarios of the survey are supported" in said


def test_unknown_scenario_is_named() -> None:
    with pytest.raises(UserError, match="there is no scenario 'T9'"):
        command.main(["T9"])


def test_scenario_numbers_are_unique() -> None:
    shipped = command.shipped()
    assert len({one.id for one in shipped}) == len(shipped)
    assert all(one.targets or one.missing for one in shipped)
