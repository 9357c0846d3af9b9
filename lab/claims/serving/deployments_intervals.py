"""How many times measured in public lie within our 90 % intervals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, within
from lab.claims.serving._deployments import METRICS, predicted
from lab.tables.deployments import SILICON
from simulators.core.contract import Check
from simulators.serving.engine.frontend import band_of

NEEDS = (SILICON,)
ALLOWED = (85.0, 94.0)


def checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield the share of both metrics."""
    found = predicted(reference, rows)
    kept = [row for row in found.rows if not row.excluded]
    if not kept:
        yield absent("deployments within intervals", f"{SILICON} has no row that is kept")
        return
    for metric in METRICS:
        bands = [band_of(row.framework, row.group, metric.lower()) for row in kept]
        low, high = np.array(bands).T
        ratio = (found.measured[metric] / found.ours[metric])[found.kept]
        inside = (low <= ratio) & (ratio <= high)
        yield from within(f"deployments {metric} within intervals", [inside], ALLOWED)
