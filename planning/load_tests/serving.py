"""Load tests of serving deployments: read benchmark logs, format runs as reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planning.load_tests.logs import lesson, measured
from planning.load_tests.report import report_of
from simulators.core.fields import point_from
from simulators.serving.measured_deployments import has_own_rows
from simulators.serving.point import EVENT, ServingPoint
from simulators.serving.run import logged_run
from simulators.serving.simulator import validated_partition

UNCORRECTED = (
    "Measured rows of this runtime correct the metrics of the design, but not this report."
)


class ServingLoadTests:
    """Read load-test logs, and format runs as load-test reports."""

    read_log = staticmethod(measured)
    lesson = staticmethod(lesson)

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the load-test report of a design; empty for a steady state."""
        design = point_from(ServingPoint, point)
        if design.fidelity != EVENT:
            return ""
        text = report_of(logged_run(validated_partition(design)))
        return f"{text}\n\n{UNCORRECTED}" if has_own_rows(design) else text


LOAD_TESTS = ServingLoadTests()
