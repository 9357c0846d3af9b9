"""How far kernels of other versions of a framework are from those that were fitted to.

Watts were metered with earlier versions than the times all fits rest on. So the same shapes were
timed twice, months apart: the drift between both is what a version costs whoever predicts the next.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.power import PowerRows, read_power_rows, read_times
from lab.tables.kernels.tensor_cores import HOST_BOUND
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.kernels.price import price

Floats = NDArray[np.float64]

LEAST_SHARED = 30
"""Fewer shapes than this in both versions say nothing about their drift."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return the error of each version's kernels, and the drift between two versions.

    Args:
        reference: a folder laid out like the reference data.
        rows: `test` for held-out shapes, `all` for every row.
    """
    metered = [p for p in read_power_rows(reference) if (p.framework, p.kind) not in HOST_BOUND]
    if not metered:
        return [Check("kernels by version", None, note=f"{MEASURED}/*_power.parquet are absent")]
    found: list[Check] = []
    for name in dict.fromkeys((p.gpu, p.framework, p.kernel) for p in metered):
        gpu, framework, kernel = name
        before = [p for p in metered if (p.gpu, p.framework, p.kernel) == name]
        after = read_times(reference, kernel, gpu, framework)
        for old in before:
            twin = [p for p in after if p.kind == old.kind]
            found += [_error(part, rows) for part in (old, *twin)]
            found += [_drift(old, new) for new in twin if _shared(old, new)[0].size >= LEAST_SHARED]
    return list({line.name: line for line in found}.values())


def _error(part: PowerRows, rows: str) -> Check:
    """Check one version's times against what is predicted."""
    judged = part if rows == "all" else part.where(part.held_out)
    name = f"{_title(part)} {part.version} MAPE"
    if not len(judged):
        return Check(name, None, "%", note="no rows")
    priced = price(judged.operator, load_gpu(part.gpu), framework=part.framework)
    error = 100.0 * (priced.latency_s / judged.seconds - 1.0)
    note = f"median {np.median(np.abs(error)):.1f}, bias {np.mean(error):+.1f}"
    return Check(name, float(np.mean(np.abs(error))), "%", rows=len(judged), note=note)


def _drift(old: PowerRows, new: PowerRows) -> Check:
    """Compare the same shapes in two versions, neither of them predicted."""
    i, j = _shared(old, new)
    change = 100.0 * (new.seconds[j] / old.seconds[i] - 1.0)
    low, high = np.quantile(change, (0.05, 0.95))
    name = f"{_title(old)} drift {old.version} to {new.version}"
    note = f"median {np.median(change):+.1f}, nine of ten between {low:+.0f} and {high:+.0f}"
    return Check(name, float(np.mean(np.abs(change))), "%", rows=change.size, note=note)


def _shared(old: PowerRows, new: PowerRows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of both that timed the same shape."""
    _, i, j = np.intersect1d(_keys(old), _keys(new), return_indices=True)
    return np.asarray(i, np.int64), np.asarray(j, np.int64)


def _keys(part: PowerRows) -> NDArray[np.uint64]:
    """Return a number per row that all sizes decide."""
    key = np.zeros(len(part), np.uint64)
    for column in part.sizes.values():
        key = key * np.uint64(1_000_003) + column.astype(np.uint64)
    return key


def _title(part: PowerRows) -> str:
    return f"{part.gpu} {part.framework} {part.kernel} {part.kind}"
