"""The reference has a page for every simulator, and the site lists every page."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]

from docs.reference import FOLDER, pages
from tests.conftest import ROOT

GENERATED = {"accuracy.md", "calibrations.md", "coverage.md", "errata.md"}


def test_site_lists_every_page() -> None:
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
    reference = {f"{FOLDER.name}/{file.name}": text for file, text in pages()}
    assert all(text.startswith("# ") for text in reference.values())
    written = {str(file.relative_to(docs)) for file in docs.rglob("*.md")}
    written = {name for name in written if not name.startswith("accuracy-of/")}
    assert listed == written | GENERATED | set(reference)
