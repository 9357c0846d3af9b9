"""Entries of a changelog with measured rows on both sides."""

from __future__ import annotations

import pytest

from lab.fits.changelog import entries
from lab.fits.differences import public
from lab.tables.deployments import database, silicon
from simulators.core.calibration import reference_folder
from simulators.serving.attribution import GROUPS, OPTIONS

REFERENCE = reference_folder()


def test_entries_name_groups_and_options_and_are_in_order_of_their_days() -> None:
    for entry in entries():
        assert set(entry.groups) <= set(GROUPS)
        assert set(entry.changed) <= set(OPTIONS)
        assert entry.before < entry.after
    pulls = [entry.pull for entry in entries()]
    assert len(set(pulls)) == len(pulls) >= 8


@pytest.mark.skipif(REFERENCE is None, reason="no measured tables")
def test_pairs_are_of_one_layout_and_load() -> None:
    assert REFERENCE is not None
    rows = [*silicon(REFERENCE), *database(REFERENCE)]
    for entry in entries():
        found = list(entry.pairs(rows))
        assert found
        for before, after in found:
            assert (before.measured, after.measured) == (entry.before, entry.after)
            assert (before.layout, before.clients) == (after.layout, after.clients)
            assert public(before).point.prompt_tokens == public(after).point.prompt_tokens
