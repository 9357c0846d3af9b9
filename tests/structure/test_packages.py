"""Limits on files, folders and import chains, and the picture of the packages."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from docs.draw import PICTURE, ROOT, imported, picture

PACKAGE_ROOTS = ("simulators", "sweeper", "lab", "deploy", "planning", "formats")
LONGEST_FILE, FULLEST_FOLDER, DEEPEST_CHAIN = 650, 15, 8
PACKAGES = [
    folder
    for top in PACKAGE_ROOTS
    for folder in sorted((ROOT / top).glob("*/"))
    if (folder / "__init__.py").is_file()
]
TOP_LEVEL = [ROOT / top for top in PACKAGE_ROOTS if (ROOT / top).is_dir()]


def files() -> list[Path]:
    return [file for top in PACKAGE_ROOTS for file in (ROOT / top).rglob("*.py")]


def module_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def chain(package: Path) -> list[str]:
    """Return the longest chain of files of a package in which each imports the next."""
    modules = {module_of(file): file for file in package.rglob("*.py")}

    @functools.cache
    def longest(module: str) -> tuple[str, ...]:
        inside = {name for name in imported(modules[module]) if name in modules} - {module}
        return (module, *max((longest(name) for name in sorted(inside)), key=len, default=()))

    try:
        return list(max((longest(module) for module in sorted(modules)), key=len))
    except RecursionError:
        pytest.fail(f"files of {package.name} import each other in a circle")


def test_files_are_not_longer_than_the_limit() -> None:
    counts = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files()}
    assert {file: count for file, count in counts.items() if count > LONGEST_FILE} == {}


def test_folders_have_at_most_fifteen_files() -> None:
    folders = {file.parent for file in files()}
    counts = {str(folder): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > FULLEST_FOLDER} == {}


@pytest.mark.parametrize("top", TOP_LEVEL, ids=lambda top: top.name)
def test_imports_have_no_cycles(top: Path) -> None:
    assert chain(top)


@pytest.mark.parametrize(
    "package", PACKAGES, ids=lambda package: f"{package.parent.name}-{package.name}"
)
def test_imports_inside_a_package_are_shallow(package: Path) -> None:
    found = chain(package)
    assert len(found) <= DEEPEST_CHAIN, " -> ".join(found)


def test_every_package_has_a_docstring() -> None:
    silent = [f for f in files() if f.name == "__init__.py" and '"""' not in f.read_text()[:4]]
    assert not silent


def test_picture_matches_imports() -> None:
    assert PICTURE.read_text() == picture(), "python -m docs.draw"
