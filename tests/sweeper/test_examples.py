"""The tutorials run as printed, and as notebooks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from docs.notebooks import as_text
from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "docs" / "tutorial").glob("*.ipynb"))


@pytest.mark.parametrize("page", PAGES, ids=[p.stem for p in PAGES])
def test_notebook_matches_the_tutorial_page(page: Path) -> None:
    written = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert written == as_text(page.read_text(encoding="utf-8")), "python -m docs.notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
def test_notebook_cells_run_in_order(file: Path, workplace: Path) -> None:
    cells = [c for c in json.loads(file.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells
    names: dict[str, object] = {}
    for cell in cells:
        needed = [t.removeprefix("needs-") for t in cell["metadata"].get("tags", ())]
        if all(importlib.util.find_spec(package) for package in needed):
            code = compile("".join(cell["source"]), f"{file.name} {cell['id']}", "exec")
            exec(code, names)  # noqa: S102 - our own pages
