"""Claims files are found by their place: the package's, and a user's own beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.claims.claim import FOLDER, load_claims, load_function, run
from simulators.core.errors import UserError

CLAIMS = """
[[claims]]
name = "time of {size}"
predictions = "times:small_and_large"
by = ["size"]
at_most = {small = 5.0, large = 20.0}

[[claims]]
name = "all"
predictions = "times:NAME"
"""
CODE = """
import polars as pl


def small_and_large(reference):
    (reference / "table.csv").read_text()
    rows = {"size": ["small", "large"], "predicted": [1.1, 1.1], "measured": [1.0, 1.0]}
    return pl.DataFrame(rows | {"held_out": [True, False]})


def fails(reference):
    raise ZeroDivisionError("no rows")
"""


@pytest.fixture
def mine(workplace: Path) -> Path:
    folder = Path("catalog/claims")
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(CLAIMS.replace("NAME", "fails"))
    (folder / "times.py").write_text(CODE)
    Path("table.csv").write_text("1")
    return folder


@pytest.mark.parametrize("group", FOLDER.names())
def test_every_claim_names_a_function(group: str) -> None:
    file = FOLDER.find(group)
    for claim in load_claims(file).claims:
        assert callable(load_function(file, claim.predictions))


@pytest.mark.parametrize("group", FOLDER.names())
def test_identifiers_of_claims_are_unique(group: str) -> None:
    ids = [claim.id for claim in load_claims(FOLDER.find(group)).claims]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def test_a_claim_that_raises_is_one_failed_line_and_the_others_are_computed(mine: Path) -> None:
    line, failed = run("mine", Path())
    assert (line.name, line.ok, line.rows) == ("time of small", False, 1)
    assert line.value == pytest.approx(10.0)
    assert (failed.name, failed.ok) == ("all", False)
    assert failed.note == "failed: ZeroDivisionError: no rows"


def test_all_rows_are_those_that_fits_have_seen_too(mine: Path) -> None:
    assert [line.name for line in run("mine", Path(), "all")][:2] == [
        "time of small",
        "time of large",
    ]


def test_a_missing_table_is_no_failure(workplace: Path) -> None:
    lines = list(run("catalog", Path()))
    assert [line.ok for line in lines] == [None]
    assert "absent" in lines[0].note


def test_a_misspelt_field_is_named(mine: Path) -> None:
    (mine / "mine.toml").write_text(CLAIMS.replace("by =", "group ="))
    with pytest.raises(UserError, match="group"):
        list(run("mine", Path()))


def test_lines_are_printed_and_a_failed_claim_is_the_exit_code(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "mine", "--reference", ".", "--json"]) == 1
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == ["time of small", "all"]


def test_there_is_no_accuracy_without_measurements() -> None:
    with pytest.raises(UserError, match="there is no measured data in nowhere"):
        list(run("dataflow", Path("nowhere")))
