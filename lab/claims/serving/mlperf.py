"""Throughput per GPU of Llama-2-70B against the best submissions to MLPerf Inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lab.claims.lines import at_most, evaluated, skipped_lines
from lab.tables.mlperf import MLPERF, mlperf
from simulators.core.contract import Check
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

NEEDS = (MLPERF,)


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of each GPU and scenario, without limits; nothing was fitted."""
    shelf, skipped = Shelf(), Counter[str]()
    rows = mlperf(reference)
    for row, metrics in evaluated(rows, lambda row: simulate(row.point, shelf), skipped):
        ours = metrics.tokens_per_s / row.point.tp
        theirs = row.tokens_per_s / row.gpus
        note = f"ours offline {ours:,.0f} of {theirs:,.0f} tokens per second and GPU, {row.name}"
        name = f"MLPerf {row.scenario}, {row.point.gpu}"
        yield at_most(name, 100.0 * abs(ours / theirs - 1.0), None, 1, note)
    yield from skipped_lines("MLPerf", skipped)
