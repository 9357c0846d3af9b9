"""A Ray cluster of several nodes on this machine, shared by the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.machines import Machines, cluster


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    with cluster() as found:
        yield found
