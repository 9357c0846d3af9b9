"""README shows the stored accuracy table, and the stored figures equal those computed now."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from docs.evidence import accuracy_table
from simulators.core.checks import Check
from sweeper.report.evidence import Headline, headlines, stored
from tests.conftest import ROOT

ROUNDING = 0.06
"""Half of the last printed digit, and the influence of other library versions."""


def test_readme_shows_the_stored_table() -> None:
    assert accuracy_table(stored()) in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.accuracy
@pytest.mark.parametrize("headline", headlines(), ids=lambda one: f"{one.group}: {one.what}")
def test_a_figure_equals_what_is_computed_now(
    claimed: Callable[[str], dict[str, Check]], headline: Headline
) -> None:
    now = {headline.group: list(claimed(headline.group).values())}
    for (_, before), (_, after) in zip(headline.found(stored()), headline.found(now), strict=True):
        assert after.value == pytest.approx(before.value, abs=ROUNDING), before.name
        assert after.verdict == before.verdict, before.name
