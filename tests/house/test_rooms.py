"""The house keeps its proportions: short files, small folders, flat rooms, floors as drawn."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import pytest

from docs.draw import PICTURE, ROOT, imported, picture

HOUSES = ("simulators", "sweeper", "lab", "deploy", "planning", "formats")
LONGEST_FILE, FULLEST_FOLDER, DEEPEST_CHAIN = 600, 15, 8
ROOMS = [
    folder
    for house in HOUSES
    for folder in sorted((ROOT / house).glob("*/"))
    if (folder / "__init__.py").is_file()
]
WHOLE = [ROOT / house for house in HOUSES if (ROOT / house).is_dir()]


def files() -> list[Path]:
    return [file for house in HOUSES for file in (ROOT / house).rglob("*.py")]


def module_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def chain(room: Path) -> list[str]:
    """Return the longest chain of files of a room of which each imports the next."""
    modules = {module_of(file): file for file in room.rglob("*.py")}

    @functools.cache
    def longest(module: str) -> tuple[str, ...]:
        inside = {name for name in imported(modules[module]) if name in modules} - {module}
        return (module, *max((longest(name) for name in sorted(inside)), key=len, default=()))

    try:
        return list(max((longest(module) for module in sorted(modules)), key=len))
    except RecursionError:
        pytest.fail(f"files of {room.name} import each other in a circle")


def test_long_files_are_warned_about() -> None:
    for file in files():
        count = len(file.read_text().splitlines())
        if count > LONGEST_FILE:
            warnings.warn(f"{file.relative_to(ROOT)} has {count} lines", stacklevel=1)


def test_no_folder_holds_more_files_than_one_remembers() -> None:
    folders = {file.parent for file in files()}
    counts = {str(folder): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > FULLEST_FOLDER} == {}


@pytest.mark.parametrize("house", WHOLE, ids=lambda house: house.name)
def test_no_two_files_import_each_other_in_a_circle(house: Path) -> None:
    assert chain(house)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: f"{room.parent.name}-{room.name}")
def test_imports_inside_a_room_are_shallow(room: Path) -> None:
    found = chain(room)
    assert len(found) <= DEEPEST_CHAIN, " -> ".join(found)


def test_every_folder_says_what_lives_in_it() -> None:
    silent = [f for f in files() if f.name == "__init__.py" and '"""' not in f.read_text()[:4]]
    assert not silent


def test_the_picture_of_the_rooms_is_what_the_imports_are() -> None:
    assert PICTURE.read_text() == picture(), "python -m docs.draw"
