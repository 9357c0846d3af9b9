"""The pages of how errors compose are what `python -m docs.errors` writes, and its parts sum."""

from __future__ import annotations

import re

import pytest

from docs import errors
from simulators.core.calibration import reference_folder

REFERENCE = reference_folder()


def test_the_parts_of_every_figure_sum_to_all_of_it() -> None:
    text = (errors.FOLDER / "composed_question.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2:-1] for line in text.splitlines() if line.startswith("| `")]
    for column in zip(*rows, strict=True):
        *parts, whole = [int(re.match(r" (\d+)%", cell)[1]) for cell in column]  # type: ignore[index]
        assert whole == 100
        assert sum(parts) == pytest.approx(100, abs=len(parts) / 2)  # each is rounded


@pytest.mark.slow
@pytest.mark.skipif(REFERENCE is None or not REFERENCE.is_dir(), reason="no measured data")
def test_the_pages_are_what_is_computed() -> None:
    for file, text in errors.pages():
        assert file.read_text(encoding="utf-8") == text, "python -m docs.errors"
