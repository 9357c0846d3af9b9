"""Scores of predictions of other tools: decisions by hand, and known errors of baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.claims.deployments import Decisions
from lab.predictions.score import scores
from simulators.core.calibration import reference_folder
from simulators.core.errors import UserError

REFERENCE = reference_folder()
measured = pytest.mark.skipif(
    REFERENCE is None or not REFERENCE.is_dir(), reason="there is no measured data"
)

RATES = {"rate": np.array([8.0, 10.0, 6.0, 5.0, 4.0])}
DESIGNS = ["a", "a", "b", "c", "d"]
EVERY = np.ones(5, bool)


def test_a_design_is_worth_its_best_load() -> None:
    choice = Decisions(["one"] * 5, DESIGNS, lambda times: times["rate"])
    predicted = {"rate": np.array([3.0, 3.0, 4.0, 3.5, 3.0])}
    assert choice.regrets(RATES, predicted, EVERY) == pytest.approx([100 * (1 - 6.0 / 10.0)])
    assert choice.regrets(RATES, RATES, EVERY) == pytest.approx([0.0])


def test_believing_in_no_design_gives_up_all() -> None:
    choice = Decisions(["one"] * 5, DESIGNS, lambda times: times["rate"])
    assert choice.regrets(RATES, {"rate": np.zeros(5)}, EVERY) == pytest.approx([100.0])


def test_alternatives_of_one_kind_are_no_decision_across_kinds() -> None:
    same = Decisions(["one"] * 5, DESIGNS, lambda times: times["rate"], ["h100"] * 5)
    assert not same.regrets(RATES, RATES, EVERY).size


@measured
@pytest.mark.parametrize(
    ("entry", "line", "value"),
    [
        ("neusight", "fp32_models, total_ms, all", 8.93),
        ("neusight", "fp32_models, total_ms, P4", 7.997),
        ("neusight", "fp32_operators, forward_us, linear", 21.28),
        ("calculon", "training_steps, step_time_s, all", 10.24),
        ("calculon", "training_steps, step_time_s, MegaScale", 13.05),
        ("aiconfigurator", "deployments, tpot_ms, all", 22.49),
        ("aiconfigurator", "deployments, ttft_ms, all", 50.91),
        ("aiconfigurator", "deployments, regret on one GPU, throughput", 3.51),
    ],
)
def test_peers_have_the_figures_they_are_known_for(entry: str, line: str, value: float) -> None:
    assert REFERENCE is not None
    found = {check.name: check.value for check in scores(entry, REFERENCE)}
    assert found[line] == pytest.approx(value, abs=0.005)


@measured
def test_a_file_of_predictions_is_scored_and_wrong_rows_are_reported(tmp_path: Path) -> None:
    assert REFERENCE is not None
    file = tmp_path / "mine.csv"
    file.write_text("row_id,step_time_s\ntr00594,3.6974066287304352\nunknown,1\n")
    found = {check.name: check for check in scores(str(file), REFERENCE)}
    assert found["training_steps, step_time_s, all"].value == pytest.approx(0.0, abs=1e-9)
    note = found["training_steps, step_time_s, all"].note
    assert "answers 1 of" in note
    assert note.endswith("1 rows of the file name none")
    file.write_text("row_id,step_time_s\ntr00594,3\ntr00594,4\n")
    with pytest.raises(UserError, match="row tr00594: `step_time_s` needs one number"):
        scores(str(file), REFERENCE)
    file.write_text("row_id,step_time_s\ntr00594,-3\n")
    with pytest.raises(
        UserError, match="row tr00594: `step_time_s` needs one number above zero, not -3"
    ):
        scores(str(file), REFERENCE)
    file.write_text("name,step_time_s\ntr00594,3\n")
    with pytest.raises(UserError, match="training_steps: row_id; step_time_s"):
        scores(str(file), REFERENCE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("files = [", "is not valid TOML"),
        ("# nothing", r"write \[\[files\]\]"),
        ("files = ['a.csv']", r"write \[\[files\]\]"),
        ("[[files]]\ncolumns = {}", r"write \[\[files\]\]"),
    ],
)
def test_an_entry_without_a_table_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    entry = tmp_path / "mine.toml"
    entry.write_text(text)
    with pytest.raises(UserError, match=said):
        scores(str(entry), tmp_path)


def test_a_hint_names_no_list_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="To add one, write catalog/entries") as raised:
        scores("calculonn", tmp_path)
    assert "`list" not in str(raised.value)
