"""The roofline again, a millisecond of a core for each point: a simulator that is not cheap.

A sweep of such points shows what orchestration costs where work is worth a chunk but no pause.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.points.roofline import Roofline

POINT_S = 1e-3


@dataclass(frozen=True)
class Millisecond(Roofline):
    """The formula on columns, after as much work as event-driven points take."""

    name: str = "benchmarks.points.millisecond"

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the roofline of every row."""
        until = time.thread_time() + POINT_S * batch.num_rows
        while time.thread_time() < until:
            pass
        return super().evaluate(batch)


SIMULATOR = Millisecond()
