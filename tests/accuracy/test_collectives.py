"""Collectives against runs of the reference simulator, and against measured libraries."""

from __future__ import annotations

import pytest

from lab.claims.collectives.nccl import checks
from simulators.core.calibration import reference_folder

# Percent; at 8 ranks of l40s, PCIe boards, the same bytes in another precision differ by 8 % too.
WIDER = {"collectives/nccl_l40s": 7.6}


@pytest.mark.slow
def test_collectives_stay_within_their_limits() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    for check in checks(reference, "test"):
        if check.value is None or check.limit is None:
            continue
        if check.name in WIDER:
            assert check.value <= WIDER[check.name]
            continue
        assert check.ok, f"{check.name}: {check.value} {check.unit}, {check.note}"
