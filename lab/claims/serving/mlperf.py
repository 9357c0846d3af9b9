"""Throughput per GPU of Llama-2-70B against the best submissions to MLPerf Inference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lab.claims.lines import answered, at_most
from lab.tables.published_runs import MLPERF, Submission, mlperf
from simulators.core.contract import Check
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

NEEDS = (MLPERF,)


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of each GPU and scenario, without limits; nothing was fitted."""
    found = answered("MLPerf", mlperf(reference), partial(_tokens_per_s, Shelf()))
    for row, ours in zip(found.rows, found.answers, strict=True):
        theirs = row.tokens_per_s / row.gpus
        note = f"ours offline {ours:,.0f} of {theirs:,.0f} tokens per second and GPU, {row.name}"
        name = f"MLPerf {row.scenario}, {row.point.gpu}"
        yield at_most(name, 100.0 * abs(ours / theirs - 1.0), None, 1, note)
    yield from found.lines


def _tokens_per_s(shelf: Shelf, row: Submission) -> float:
    """Return our throughput per GPU."""
    return simulate(row.point, shelf).tokens_per_s / row.point.tp
