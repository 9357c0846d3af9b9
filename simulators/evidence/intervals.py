"""90 % prediction intervals of kernel times, as ratios to the predicted time.

A band holds quantiles of the residuals on held-out rows, by operator class and by regime. A regime
is a range of predicted times: short kernels scatter more than long ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REGIMES_S = (2e-4, 2e-3)
"""Boundaries between regimes: launch and tail dominate below, whole waves of tiles above."""

UNKNOWN = 2.0
"""Ratio of an interval's ends to the prediction without any measurement, by choice."""

COVERED = (0.05, 0.95)
"""Quantiles of the residuals at the ends of a 90 % interval."""


@dataclass(frozen=True)
class Band:
    """Ends of a 90 % interval as factors on the predicted time, one pair per regime."""

    lo: tuple[float, ...]
    hi: tuple[float, ...]


def uniform_band(lo: float, hi: float) -> Band:
    """Return a band with the same ends in every regime; the prediction lies between them."""
    regimes = len(REGIMES_S) + 1
    return Band((min(lo, 1.0),) * regimes, (max(hi, 1.0),) * regimes)


WIDEST = uniform_band(1.0 / UNKNOWN, UNKNOWN)
BY_SHEET = uniform_band(1.0, UNKNOWN**2)
"""Band of a lower bound from a data sheet, by choice: libraries reach a part of the stated
rates."""


def band_from(table: Mapping[str, Any]) -> Band:
    """Return the band of a calibration table."""
    return Band(tuple(map(float, table["lo"])), tuple(map(float, table["hi"])))


def interval_s(
    band: Band, latency_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and upper end of the 90 % interval of each latency, in seconds.

    >>> lo, hi = interval_s(Band((0.5, 0.8, 0.9), (2.0, 1.2, 1.1)), np.array([1e-5, 1.0]))
    >>> hi.tolist()
    [2e-05, 1.1]
    """
    regime = np.searchsorted(REGIMES_S, latency_s, side="right")
    return latency_s * np.array(band.lo)[regime], latency_s * np.array(band.hi)[regime]
