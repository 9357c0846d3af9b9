"""Fit how far intervals of passes reach on the deployments that bands of frameworks were seen on.

What a deployment's kernels are less sure of than these widens its band
(`simulators/serving/answer/error_bands.py`). The median over replicas stands for a framework.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes
from lab.fits.steady_state import by_replica, deployed_replica
from lab.tables.deployments import SILICON, silicon
from simulators.composition.replica import load_runtime
from simulators.serving.answer.error_bands import CALIBRATION
from simulators.serving.measured_deployments import FRAMEWORKS
from simulators.serving.prices.iteration_table import everyday_reach

FOLDER = CALIBRATION.parent
SPLIT = "none: intervals alone are read, no measured time"


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the usual reach of every framework, of both latencies."""
    rows = [row for row in silicon(reference) if not row.excluded]
    first = [rows[indices[0]] for indices in by_replica(rows).values()]
    lines, off = [], []
    for framework in FRAMEWORKS:
        runtime = load_runtime(framework)
        some = [
            everyday_reach(deployed_replica(row, runtime))
            for row in first
            if row.framework == framework
        ]
        lines.append(f"[usual.{framework}]")
        for metric in some[0]:
            ends = np.log([reach[metric] for reach in some])
            low, high = np.exp(usual := np.median(ends, axis=0))
            lines.append(f"{metric} = [{low:.4g}, {high:.4g}]")
            off.append(np.abs(ends - usual).ravel())
    yield calibration(
        CALIBRATION.stem, hashes(reference, [SILICON]), rows=len(first), split=SPLIT,
        held_out=np.expm1(np.concatenate(off)), lines=lines,
    )  # fmt: skip
