"""Claims are found by their place: the package's, and a user's own beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.claims.claim import files_of
from lab.validate import claims, groups, run
from simulators.core.errors import UserError

MINE = """
from simulators.core.contract import Check

NEEDS = ("mine/table.csv",)


def checks(reference, rows):
    lines = (reference / NEEDS[0]).read_text().splitlines()
    yield Check("mine", float(len(lines)), rows=len(lines), note=rows)
"""


@pytest.mark.parametrize("room", groups())
def test_every_room_has_claims(room: str) -> None:
    assert claims(room) or files_of(room)


def test_a_claim_of_ones_own_is_a_file_in_the_catalog(workplace: Path) -> None:
    file = Path("catalog/claims/mine/my_claim.py")
    file.parent.mkdir(parents=True)
    file.write_text(MINE)
    assert "mine" in groups()
    [absent] = run("mine", Path(), "test")
    assert (absent.name, absent.note) == ("my_claim", "absent: mine/table.csv")
    Path("mine").mkdir()
    Path("mine/table.csv").write_text("1\n2\n")
    [line] = run("mine", Path(), "all")
    assert (line.name, line.rows, line.note) == ("mine", 2, "all")


def test_a_claim_that_raises_is_one_failed_check_and_the_next_claim_runs(workplace: Path) -> None:
    folder = Path("catalog/claims/mine")
    folder.mkdir(parents=True)
    (folder / "a_fails.py").write_text(
        "from simulators.core.contract import Check\n"
        "def checks(reference, rows):\n"
        "    yield Check('first', 1.0)\n"
        "    raise ZeroDivisionError('no rows')\n"
    )
    (folder / "b_runs.py").write_text(
        "from simulators.core.contract import Check\n"
        "def checks(reference, rows):\n"
        "    return [Check('second', 2.0)]\n"
    )
    first, failed, second = run("mine", Path())
    assert (first.name, second.name) == ("first", "second")
    assert (failed.name, failed.ok, failed.note) == ("a_fails", False, "ZeroDivisionError: no rows")


def test_lines_are_printed_and_a_failed_claim_is_the_exit_code(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("catalog/claims/mine")
    folder.mkdir(parents=True)
    (folder / "my_claim.py").write_text(MINE)
    assert main(["validate", "mine", "--reference", "."]) == 0
    assert capsys.readouterr().out == "my_claim: -, absent: mine/table.csv\n"
    (folder / "my_claim.py").write_text("def checks(reference, rows):\n    return 1 / 0\n")
    assert main(["validate", "mine", "--reference", ".", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert main(["validate", "nothing"]) == 2
    assert main(["validate", "mine", "--write", "--reference", "."]) == 2


def test_a_folder_without_tables_is_answered_by_every_claim(tmp_path: Path) -> None:
    for room in ("collectives", "composition", "dataflow"):
        assert any("absent" in check.note for check in run(room, tmp_path))


def test_there_is_no_accuracy_without_measurements() -> None:
    with pytest.raises(UserError, match="there is no measured data in nowhere"):
        list(run("dataflow", Path("nowhere")))
