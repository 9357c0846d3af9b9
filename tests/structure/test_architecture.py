"""The architecture page names existing files, and its example parameters occur in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.draw import ROOT, layers

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PATHS = re.findall(r"### `(\w+)`\n(.*?)(?=\n### |\Z)", PAGE, flags=re.DOTALL)
NAMED = re.compile(r"`((?:spaces|sweeper|simulators|lab|deploy|planning|formats)/[\w./]+?)`")
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
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
def test_documented_paths_exist(page: Path) -> None:
    named = [file for file in NAMED.findall(page.read_text()) if not re.search("[A-Z]{4}", file)]
    assert [file for file in named if not (ROOT / file).exists()] == []


def test_every_package_of_the_picture_is_documented() -> None:
    packages = {package.replace(".", "/") for layer in layers() for package in layer}
    assert {package for package in packages if f"`{package}" not in PAGE} == set()


@pytest.mark.parametrize(("parameter", "path"), PATHS)
def test_parameter_occurs_in_the_files_of_its_path(parameter: str, path: str) -> None:
    files = NAMED.findall(path)
    assert len(files) >= 6
    bearing = [file for file in files if any(part in file for part in BY_NAME)]
    missing = [
        file for file in bearing if not re.search(rf"\b{parameter}\b", (ROOT / file).read_text())
    ]
    assert missing == []


def test_entry_modules_exist() -> None:
    lines = re.findall(r"^\| `([\w/]+)` \|[^|]*\| `(\w+\.py)` \|", PAGE, flags=re.MULTILINE)
    assert len(lines) > 10
    assert [line for line in lines if not ROOT.joinpath(*line).is_file()] == []
