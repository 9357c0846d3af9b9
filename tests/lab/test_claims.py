"""Claims are found by their place: the package's, and a user's own beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.core.errors import UserError
from sweeper.commands.checks.validate import claims, rooms, run

MINE = """
from simulators.core.contract import Check

NEEDS = ("mine/table.csv",)


def checks(reference, rows):
    lines = (reference / NEEDS[0]).read_text().splitlines()
    yield Check("mine", float(len(lines)), rows=len(lines), note=rows)
"""


@pytest.mark.parametrize("room", rooms())
def test_every_room_has_claims(room: str) -> None:
    assert claims(room)


def test_a_claim_of_ones_own_is_a_file_in_the_catalog(workplace: Path) -> None:
    file = Path("catalog/claims/mine/my_claim.py")
    file.parent.mkdir(parents=True)
    file.write_text(MINE)
    assert "mine" in rooms()
    [absent] = run("mine", ".", "test")
    assert (absent.name, absent.note) == ("my_claim", "absent: mine/table.csv")
    Path("mine").mkdir()
    Path("mine/table.csv").write_text("1\n2\n")
    [line] = run("mine", ".", "all")
    assert (line.name, line.rows, line.note) == ("mine", 2, "all")


def test_a_folder_without_tables_is_answered_by_every_claim(tmp_path: Path) -> None:
    for room in ("collectives", "composition", "dataflow"):
        assert any("absent" in check.note for check in run(room, str(tmp_path), "test"))


def test_there_is_no_accuracy_without_measurements() -> None:
    with pytest.raises(UserError, match="there is no measured data in nowhere"):
        run("dataflow", "nowhere", "test")
