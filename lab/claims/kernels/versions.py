"""How far kernels of other versions of a framework are from those that were fitted to.

Watts were metered with earlier versions than the times all fits rest on. So the same shapes were
timed twice, months apart: the drift between both is what a version costs whoever predicts the next.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.claims.judged import judged
from lab.claims.lines import absent, error_line, percent_off
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.power import read_power_rows, read_times
from lab.tables.rows import Groups, Rows, group_of, is_host_timed
from simulators.core.contract import Check

LEAST_SHARED = 30
"""Fewer shapes than this in both versions say nothing about their drift."""


def by_version(reference: Path, rows: str) -> list[Check]:
    """Return the error of each version's kernels, and the drift between two versions."""
    metered = [p for p in read_power_rows(reference) if not is_host_timed(p)]
    if not metered:
        return [absent("kernels by version", f"{MEASURED}/*_power.parquet are absent")]
    found: list[Check] = []
    for name in dict.fromkeys((p.kernel, p.gpu, p.framework) for p in metered):
        after = read_times(reference, *name)
        for old in (p for p in metered if (p.kernel, p.gpu, p.framework) == name):
            twins = [p for p in after if p.dtype == old.dtype]
            found += [_error(part, rows) for part in (old, *twins)]
            found += [line for new in twins for line in _drift(old, new)]
    return list({line.name: line for line in found}.values())


def _error(part: Rows, rows: str) -> Check:
    """Check one version's times against what is predicted."""
    one = judged([part if rows == "all" else part.where(part.held_out)])
    return error_line(f"{_title(part)} {part.version} MAPE", [one.errors])


def _drift(old: Rows, new: Rows) -> list[Check]:
    """Compare the same shapes in two versions, neither of them predicted."""
    _, i, j = np.intersect1d(_shape(old), _shape(new), return_indices=True)
    if i.size < LEAST_SHARED:
        return []
    change = percent_off(new.seconds[j], old.seconds[i])
    low, high = np.quantile(change, (0.05, 0.95))
    note = f"median {np.median(change):+.1f}, nine of ten between {low:+.0f} and {high:+.0f}"
    name = f"{_title(old)} drift {old.version} to {new.version}"
    return [Check(name, float(np.mean(np.abs(change))), "%", rows=change.size, note=note)]


def _shape(part: Rows) -> Groups:
    """Return a number per row that all sizes decide; nothing metered is batched."""
    return group_of(size for name, size in part.sizes.items() if name != "batch")


def _title(part: Rows) -> str:
    return f"{part.gpu} {part.framework} {part.kernel} {part.dtype}"
