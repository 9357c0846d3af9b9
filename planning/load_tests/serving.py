"""A serving deployment under a load test: as benchmarks logged it, and as they would print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planning.load_tests.logs import lesson, measured
from planning.load_tests.report import report_of
from simulators.core.grouping import point_from
from simulators.serving.answer.user_measurements import has_own_rows
from simulators.serving.point import EVENT, ServingPoint
from simulators.serving.run import logged_run
from simulators.serving.simulator import on_its_part

UNCORRECTED = (
    "Measured rows of its runtime correct the figures of the design, not those of this report."
)


class LoadTests:
    """Reads logs of load tests of the real thing, and reports runs as one."""

    read_log = staticmethod(measured)
    lesson = staticmethod(lesson)

    def report(self, point: Mapping[str, Any]) -> str:
        """Return the run of a design as a load test would print it; of a steady state, nothing."""
        design = point_from(ServingPoint, point)
        if design.fidelity != EVENT:
            return ""
        text = report_of(logged_run(on_its_part(design)))
        return f"{text}\n\n{UNCORRECTED}" if has_own_rows(design) else text


LOAD_TESTS = LoadTests()
