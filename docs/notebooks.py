"""The tutorials as notebooks: each page of `docs/tutorial/` is one, cell by cell.

    python -m docs.notebooks        write them again beside their pages

A page is what is edited; its notebook opens in Jupyter, and `tests/` runs its cells as they stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "tutorial"
_BLOCK = re.compile(r"^```python(?: needs=(\w+))?\n(.*?)^```\n?", re.S | re.M)


def notebook(page: str) -> dict[str, Any]:
    """Return a page of Markdown as a notebook: text and code in turns, nothing run yet."""
    return {
        "cells": list(_cells(page)),
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def as_text(page: str) -> str:
    """Return the notebook of a page as its file holds it."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


def _cells(page: str) -> Iterator[dict[str, Any]]:
    """Yield a page's cells; code that needs a package says so in its tags."""
    at, pieces = 0, list(_BLOCK.finditer(page))
    for number, block in enumerate(pieces):
        if text := page[at : block.start()].strip():
            yield _cell("markdown", text, f"text-{number}")
        tags = [f"needs-{block[1]}"] if block[1] else []
        yield _cell("code", block[2].rstrip(), f"code-{number}", tags)
        at = block.end()
    if text := page[at:].strip():
        yield _cell("markdown", text, f"text-{len(pieces)}")


def _cell(kind: str, text: str, name: str, tags: list[str] | None = None) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": name,
        "metadata": {"tags": tags} if tags else {},
        "source": text.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def main() -> None:
    """Write the notebook of each page."""
    for page in sorted(FOLDER.glob("*.md")):
        file = page.with_suffix(".ipynb")
        file.write_text(as_text(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
