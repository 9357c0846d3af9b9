"""Fit the least time in which the host of an engine prepares an iteration, behind the GPU's work.

An engine was timed between its kernels: scheduling, preparing inputs, launching the sampler and
taking in what it chose. A line over the batch says what an iteration takes whatever its size; the
quickest board and release of the engine on one GPU stands for all engines, of which none of today
was timed so. It is a floor: what big models hide, no fit to deployments sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes
from lab.tables.rows import read_records
from simulators.composition.replica import HOST

TABLE = "llm_ops/cpu_overhead.parquet"
FOLDER = HOST.parent
TIMED = ("schedule", "prepare_inputs_launch", "sampler_launch", "process_model_outputs")
SPLIT = "the quickest of the boards and releases at tp 1; the error is how far the others are"


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
    yield calibration(
        HOST.stem,
        hashes(reference, [TABLE]),
        rows=sum(map(len, groups.values())),
        split=SPLIT,
        held_out=fixed_s[fixed_s > least_s] / least_s - 1.0,
        lines=["", "[host]", f"prepare_s = {least_s:.3g}"],
    )
