"""Fit the least time in which an engine's host prepares an iteration: scheduling, inputs, sampling.

A line over the batch size gives the part that does not depend on it. The fastest GPU and release
represents all engines, as current ones have not been timed so: a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.tables.rows import read_records
from simulators.composition.replica import HOST

TABLE = "llm_ops/cpu_overhead.parquet"
FOLDER = HOST.parent
TIMED = ("schedule", "prepare_inputs_launch", "sampler_launch", "process_model_outputs")


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the seconds of an iteration."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in read_records(reference / TABLE):
        times = [row[f"{part}_median_ms"] for part in TIMED]
        if row["tp"] == 1 and None not in times:
            group = groups.setdefault((row["blob"], row["gpu"]), [])
            group.append((float(row["batch_size"]), 1e-3 * sum(times)))
    columns = [np.array(group).T for group in groups.values()]
    fixed_s = np.array([np.polyfit(batch, seconds, 1)[1] for batch, seconds in columns])
    least_s = float(fixed_s.min())
    yield Calibration(
        name=HOST.stem,
        content={"host": {"prepare_s": least_s}},
        style=".3g",
        tables=[TABLE],
        rows=sum(map(len, groups.values())),
        split="the fastest GPU and release at tp 1; the error is the distance of the others",
        errors=fixed_s[fixed_s > least_s] / least_s - 1.0,
    )
