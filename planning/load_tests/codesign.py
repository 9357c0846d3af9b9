"""Load tests of deployments on a custom accelerator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planning.load_tests import serving
from simulators.codesign.simulator import served


class CodesignLoadTests(serving.ServingLoadTests):
    """Read load-test logs, and format runs as load-test reports."""

    def at_log(
        self, point: Mapping[str, Any], text: str, source: str
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the fields that give a design the load of a log, and notes on differences."""
        return super().at_log(served(point), text, source)

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the load-test report of a design; empty for a steady state."""
        return super().report(served(point))


LOAD_TESTS = CodesignLoadTests()
