"""A roofline simulator that takes a millisecond of CPU time per point.

Sweeps of this simulator measure the overhead relative to real work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.points.roofline import Roofline

POINT_S = 1e-3


@dataclass(frozen=True)
class Millisecond(Roofline):
    """Roofline with additional work of a millisecond per point."""

    name: str = "benchmarks.points.millisecond"

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the roofline of every row."""
        until = time.thread_time() + POINT_S * batch.num_rows
        while time.thread_time() < until:
            pass
        return super().evaluate(batch)


SIMULATOR = Millisecond()
