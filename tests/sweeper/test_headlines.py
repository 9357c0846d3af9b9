"""The accuracy table: stored errors beside baseline errors, and the command `accuracy`."""

from __future__ import annotations

import json

import pytest

from docs.evidence import accuracy_table
from simulators.core.checks import Check
from sweeper.__main__ import main
from sweeper.report import evidence
from sweeper.report.evidence import Headline, headlines

KNOWN = {
    "mine": [
        Check("from the data sheet", 13.36, "%", rows=17, peer=5.31),
        Check("ten rows", 2.04, "%", 3.0, ok=True, rows=10),
        Check("gone", None, "%"),
    ]
}


def headline(*names: str) -> Headline:
    return Headline("mine", "GPUs", [(f"l{i}", name) for i, name in enumerate(names)], "Other")


def test_accuracy_row_has_errors_and_baseline_errors() -> None:
    found = headline("from the data sheet", "ten rows").cells(KNOWN)
    assert found == ("mine: GPUs", "l0 13.4 %, l1 2.0 %", "17, 10", "Other 5.3 %")


@pytest.mark.parametrize("name", ["gone", "unknown"])
def test_check_without_a_value_is_omitted(name: str) -> None:
    assert headline(name).cells(KNOWN) == ("mine: GPUs", "-", "", "-")


def test_every_accuracy_figure_is_stored() -> None:
    known = evidence.stored()
    assert all(len(one.found(known)) == len(one.lines) for one in headlines())
    assert len(headlines()) <= 8
    assert accuracy_table(known).count("\n") == len(headlines()) + 1


def test_stored_checks_are_printed_by_group_model_and_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["accuracy", "collectives", "--json"]) == 0
    names = [line["name"] for line in json.loads(capsys.readouterr().out)]
    assert names == [check.name for check in evidence.stored()["collectives"]]
    assert main(["accuracy", "--gpu", "h200_sxm", "--json"]) == 0
    assert all("h200_sxm" in line["name"] for line in json.loads(capsys.readouterr().out))
    assert main(["accuracy"]) == 0
    assert "aiconfigurator" in capsys.readouterr().out


def test_unknown_accuracy_group_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "servng"]) == 2
    assert "did you mean 'serving'" in capsys.readouterr().err
