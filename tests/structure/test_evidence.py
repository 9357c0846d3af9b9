"""The generated pages on accuracy and coverage."""

from __future__ import annotations

import functools

import pytest

from docs import evidence
from lab.scenarios import Outcome
from simulators.core.calibration import reference_folder

REFERENCE = reference_folder()
measured = pytest.mark.skipif(
    REFERENCE is None or not REFERENCE.is_dir(), reason="there is no measured data"
)


@functools.cache
def answers() -> list[Outcome]:
    return evidence.answers()


def test_accuracy_page_shows_every_stored_figure() -> None:
    assert evidence.accuracy().count("\n| ") > 50


def test_each_gpu_and_model_with_a_check_has_a_page_of_its_checks() -> None:
    pages = {file.stem: text for file, text in evidence.accuracy_pages()}
    index = evidence.accuracy()
    assert {"h100_sxm", "mi300x", "deepseek_v3"} <= set(pages)
    for name, text in pages.items():
        assert f"(accuracy-of/{name}.md)" in index
        assert name in text.partition("| --- |")[2]


@pytest.mark.slow
@measured
def test_missing_scenarios_have_a_reason() -> None:
    for one in answers():
        assert one.reason == one.scenario.missing
        assert all(f.in_band or f.target.miss for f in one.figures), one.scenario.id


@pytest.mark.slow
def test_every_point_outside_the_evidence_raises_a_flag() -> None:
    silent = [
        one["when"] for one in evidence.breaks() if not evidence.is_raised(one["flag"], one["row"])
    ]
    assert silent == []
