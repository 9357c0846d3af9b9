"""The tutorials run as printed, and as notebooks; transcripts agree but for their figures."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from docs.notebooks import as_text
from tests.conftest import ROOT
from tests.questions.test_questions import _run

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


TRANSCRIPTS = (ROOT / "docs" / "tutorial" / "first-ten-minutes.md").read_text(encoding="utf-8")
SESSIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", TRANSCRIPTS, re.M))
SPACE = re.compile(r"\bask_\w+_[0-9a-f]{6}\b")


@pytest.mark.slow
@pytest.mark.parametrize("session", [name for name, text in SESSIONS.items() if "$ " in text])
def test_transcript_runs_and_prints_what_the_page_shows(
    session: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    files = re.compile(r"^```(?:json|csv) (\S+)\n(.*?)^```", re.M | re.S)
    for name, text in files.findall(SESSIONS[session]):
        (workplace / name).write_text(text, encoding="utf-8")
    asked = ""
    for block in re.findall(r"^```console\n(.*?)^```", SESSIONS[session], re.M | re.S):
        for command, shown in re.findall(r"^\$ sweeper (.+)\n((?:(?!\$ ).*\n)*)", block, re.M):
            code, text = _run(SPACE.sub(asked, command))
            assert code == 0, text
            asked = next(iter(SPACE.findall(text)), asked)
            parts = map(re.escape, map(_masked, re.split(r"^\.\.\.$", shown, flags=re.M)))
            assert re.search(".*".join(parts), _masked(text)), f"{shown}\nis not in\n{text}"


def _masked(text: str) -> str:
    """Return text with one space between words and with figures masked."""
    return re.sub(r"\d[\d.,]*", "0", " ".join(text.split()))
