"""The pages of composed errors equal the output of `python -m docs.errors`."""

from __future__ import annotations

import re

import pytest

from docs import errors
from simulators.core.calibration import reference_folder

REFERENCE = reference_folder()


def test_shares_of_every_metric_sum_to_one() -> None:
    text = (errors.FOLDER / "composed_question.md").read_text(encoding="utf-8")
    for page in text.split("```text")[1:]:
        rows = [re.findall(r"(\d+)%;", line) for line in page.splitlines() if "%; " in line]
        assert len(rows) == 6
        for column in zip(*rows, strict=True):
            assert sum(map(int, column)) in (0, *range(97, 104))  # each is rounded


@pytest.mark.slow
@pytest.mark.skipif(REFERENCE is None or not REFERENCE.is_dir(), reason="no measured data")
def test_error_pages_match_the_generator() -> None:
    for file, text in errors.pages():
        assert file.read_text(encoding="utf-8") == text, "python -m docs.errors"
