"""The pages of composed errors equal the output of `python -m docs.errors`."""

from __future__ import annotations

import re

import pytest

from docs import errors
from simulators.core.calibration import reference_folder

REFERENCE = reference_folder()


def test_components_of_every_error_sum_to_the_total() -> None:
    text = (errors.FOLDER / "composed_question.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2:-1] for line in text.splitlines() if line.startswith("| `")]
    for column in zip(*rows, strict=True):
        *parts, whole = [int(re.match(r" (\d+)%", cell)[1]) for cell in column]  # type: ignore[index]
        assert whole == 100
        assert sum(parts) == pytest.approx(100, abs=len(parts) / 2)  # each is rounded


@pytest.mark.slow
@pytest.mark.skipif(REFERENCE is None or not REFERENCE.is_dir(), reason="no measured data")
def test_error_pages_match_the_generator() -> None:
    for file, text in errors.pages():
        assert file.read_text(encoding="utf-8") == text, "python -m docs.errors"
