"""Runs of VIDUR and the survey's table, event by event; lengths against rows nobody fitted."""

from __future__ import annotations

import pytest

from lab.claims.serving.vidur import engine_checks
from simulators.core.calibration import reference_folder


@pytest.mark.slow
def test_reference_runs_are_reproduced() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no reference runs: set SWEEPER_REFERENCE to a reference folder")
    found = engine_checks(reference, "test")
    wrong = [
        f"{c.name}: {c.value} {c.unit}, {c.note}"
        for c in found
        if c.value is not None and c.ok is False
    ]
    assert not wrong, "\n".join(wrong)
    assert any(c.ok for c in found)
