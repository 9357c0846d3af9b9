"""How many times measured in public lie within our 90 % intervals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import within
from lab.claims.serving._deployments import METRICS, predicted
from lab.fits.left_out import band_without
from lab.tables.deployments import SILICON
from simulators.core.contract import Check

NEEDS = (SILICON,)
ALLOWED = (85.0, 94.0)


def checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield the share of both metrics."""
    found = predicted(reference, rows)
    kept = [row for row in found.rows if not row.excluded]
    for metric in METRICS:
        bands = [band_without(row.framework, row.group, metric.lower()) for row in kept]
        low, high = np.array(bands).T
        ratio = (found.measured[metric] / found.ours[metric])[found.kept]
        inside = (low <= ratio) & (ratio <= high)
        yield from within(f"deployments {metric} within intervals", [inside], ALLOWED)
