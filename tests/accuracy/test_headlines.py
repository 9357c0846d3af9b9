"""README claims what `validate` computes: its table is the stored one, and the stored one holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulators.core.contract import Check
from sweeper.report.evidence import stored
from sweeper.report.headlines import README, Headline, headlines, with_figures
from tests.conftest import ROOT

ROUNDING = 0.06
"""Half of the last digit that is printed, and what other libraries may move."""


def test_readme_claims_what_is_stored() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_figures(text, stored()) == text, "run `validate --stored --write docs/accuracy.md`"


def test_the_page_of_figures_begins_with_the_same_table() -> None:
    block = README.read_text(encoding="utf-8").partition("-->\n")[2].partition("\n<!--")[0]
    assert block in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


def test_every_claim_says_what_was_known() -> None:
    for one in headlines():
        assert len(one.said) > 20, one.claim
        assert len(one.lines) == len({label for label, _ in one.lines}) or one.room, one.claim


@pytest.mark.slow
@pytest.mark.parametrize("headline", headlines(), ids=lambda one: f"{one.room}: {one.claim}")
def test_a_claim_still_holds(
    claimed: Callable[[str], dict[str, Check]], headline: Headline
) -> None:
    """Each figure in README equals what is computed now, to rounding."""
    now = {headline.room: list(claimed(headline.room).values())}
    for (label, told), (_, found) in zip(
        headline.found(stored()), headline.found(now), strict=True
    ):
        assert found, f"{label}: nothing is called so"
        computed = {check.name: check for check in found}
        for check in told:
            assert check.name in computed, check.name
            assert computed[check.name].value == pytest.approx(check.value, abs=ROUNDING), (
                check.name
            )
            assert computed[check.name].verdict == check.verdict, check.name
        assert len(told) == len(found), label
