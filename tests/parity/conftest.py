"""The folder of measured tables; tests that need a table are skipped without the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.core.calibration import reference_folder


@pytest.fixture(scope="session")
def reference() -> Path:
    """Return the folder of measured tables."""
    folder = reference_folder()
    if folder is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    return folder
