"""The page of the architecture names files that are there, in which a parameter can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.draw import ROOT, floors

PAGE = (ROOT / "docs" / "architecture.md").read_text()
WAYS = re.findall(r"### `(\w+)`\n(.*?)(?=\n### |\Z)", PAGE, flags=re.DOTALL)
NAMED = re.compile(r"`((?:spaces|sweeper|simulators|lab|deploy|planning|formats)/[\w./]+?)`")
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BY_NAME = (
    "spaces/",
    "point.py",
    "simulator.py",
    "arrivals.py",
    "transformer.py",
    "tensor_cores.py",
    "memory.py",
    "accelerator.py",
    "precision.py",
)
"""Where a parameter still has its own name; further on it is one column or number among others."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_on_a_page_is_there(page: Path) -> None:
    named = [path for path in NAMED.findall(page.read_text()) if not re.search("[A-Z]{4}", path)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_room_of_the_picture_has_a_line_on_the_page() -> None:
    rooms = {room.replace(".", "/") for floor in floors() for room in floor}
    assert {room for room in rooms if f"`{room}" not in PAGE} == set()


@pytest.mark.parametrize(("parameter", "way"), WAYS)
def test_a_parameter_is_found_in_the_files_of_its_way(parameter: str, way: str) -> None:
    files = NAMED.findall(way)
    assert len(files) >= 6
    bearing = [file for file in files if any(part in file for part in BY_NAME)]
    missing = [
        file for file in bearing if not re.search(rf"\b{parameter}\b", (ROOT / file).read_text())
    ]
    assert missing == []


def test_doors_stand_in_their_rooms() -> None:
    lines = re.findall(r"^\| `([\w/]+)` \|[^|]*\| `(\w+\.py)` \|", PAGE, flags=re.MULTILINE)
    assert len(lines) > 10
    assert [(room, door) for room, door in lines if not (ROOT / room / door).is_file()] == []
