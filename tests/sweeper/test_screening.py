"""Steady states exclude designs of `ask`, and the answer is still the cheapest design."""

from __future__ import annotations

import pytest

from benchmarks.screening import SHARE, WITHIN, measured


@pytest.mark.slow
def test_screened_answers_cost_the_same_at_a_fraction_of_the_iterations() -> None:
    found = [one for one in measured(4) if one]
    assert len(found) >= 3
    assert max(one.excess for one in found) <= WITHIN
    share = 100.0 * sum(o.iterations for o in found) / sum(o.exhaustive for o in found)
    assert share <= SHARE
