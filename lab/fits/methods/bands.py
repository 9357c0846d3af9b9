"""Bands of residuals: what nine of ten rows that no fit saw fell into, and those of a new board."""

from __future__ import annotations

import numpy as np

from lab.tables.rows import Floats
from simulators.evidence.intervals import COVERED, REGIMES_S, Band

ROWS_PER_REGIME = 30
"""Fewer held-out rows than this say nothing about a twentieth of them; the whole class speaks."""


def band_of(predicted_s: Floats, measured_s: Floats) -> Band:
    """Return the band of predictions that were not fitted to these measurements."""
    ratio = measured_s / predicted_s
    regime = np.searchsorted(REGIMES_S, predicted_s, side="right")
    pairs = []
    for number in range(len(REGIMES_S) + 1):
        inside = ratio[regime == number]
        lo, hi = np.quantile(inside if inside.size >= ROWS_PER_REGIME else ratio, COVERED)
        pairs.append((min(float(lo), 1.0), max(float(hi), 1.0)))
    return Band(tuple(lo for lo, _ in pairs), tuple(hi for _, hi in pairs))


def stretched(band: Band, power: float) -> Band:
    """Return the band with both ends moved away from one, by a power of themselves."""
    return Band(tuple(lo**power for lo in band.lo), tuple(hi**power for hi in band.hi))
