"""The worked examples run as they are printed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs" / "examples").glob("*.md"))
BLOCK = re.compile(r"^```python(?: needs=(\w+))?\n(.*?)^```", re.S | re.M)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[p.stem for p in PAGES])
def test_an_example_runs(page: Path, workplace: Path) -> None:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    names: dict[str, object] = {}
    for needed, code in blocks:
        if not needed or importlib.util.find_spec(needed):
            exec(compile(code, str(page), "exec"), names)  # noqa: S102 - our own pages
