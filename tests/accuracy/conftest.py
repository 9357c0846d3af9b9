"""Checks that several files look at are computed once."""

from __future__ import annotations

import pytest

from lab.claims.composition.forward_passes import checks
from simulators.core.calibration import reference_folder
from simulators.core.contract import Check


@pytest.fixture(scope="session")
def composition() -> dict[str, Check]:
    """The checks of whole passes and graphs on rows nothing was fitted to, by name."""
    reference = reference_folder()
    if reference is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    return {check.name: check for check in checks(reference, "test")}
