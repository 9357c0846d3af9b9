"""The reference is what the fields of the simulators say, and the site lists every page."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from docs.reference import pages
from tests.conftest import ROOT

PAGES = list(pages())


@pytest.mark.parametrize(("file", "text"), PAGES, ids=[file.stem for file, _ in PAGES])
def test_a_page_of_the_reference_is_true(file: Path, text: str) -> None:
    assert file.read_text(encoding="utf-8") == text, "python -m docs.reference"


def test_every_page_stands_in_the_site() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed: set[str] = set()
    waiting = [nav]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            listed.add(part)
        else:
            waiting += part.values() if isinstance(part, dict) else part
    docs = ROOT / "docs"
    assert listed == {str(file.relative_to(docs)) for file in docs.rglob("*.md")}
