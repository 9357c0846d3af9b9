"""A deployment on an accelerator of one's own under a load test: like any that serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planning.load_tests import serving
from simulators.codesign.simulator import served


class LoadTests(serving.LoadTests):
    """Reads logs of load tests of the real thing, and reports runs as one."""

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as a load test would print it; of a steady state, nothing."""
        return super().report(served(point))


LOAD_TESTS = LoadTests()
