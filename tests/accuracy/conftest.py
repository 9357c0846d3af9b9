"""Claims that several files look at are computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from lab.claims.claim import run
from simulators.core.calibration import reference_folder
from simulators.core.checks import Check

Lines = dict[str, Check]


@pytest.fixture(scope="session")
def claimed() -> Callable[[str], Lines]:
    """Lines of a group of claims on held-out rows, by name."""
    if reference_folder() is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")

    @functools.cache
    def lines(group: str) -> Lines:
        return {check.name: check for check in run(group, details=True)}

    return lines
