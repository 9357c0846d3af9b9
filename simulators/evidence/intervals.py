"""The 90 % interval of a prediction: what nine of ten measurements fell into.

The interval is a ratio to the predicted time, read off residuals of rows nothing was fitted to,
by operator class and by regime. A regime is a range of predicted times: short kernels scatter
more than long ones. The less was measured on a device, the wider its band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REGIMES_S = (2e-4, 2e-3)
"""Regimes end here: below are calls dominated by launch and tail, above whole waves of tiles."""

UNKNOWN = 2.0
"""Without any measurement of an operator class, a factor of two either way is stated by choice."""

COVERED = (0.05, 0.95)
"""Quantiles of the residuals between which a 90 % interval lies."""


@dataclass(frozen=True)
class Band:
    """Factors on the predicted time, one pair per regime."""

    lo: tuple[float, ...]
    hi: tuple[float, ...]


def everywhere(lo: float, hi: float) -> Band:
    """Return a band with the same ends in every regime, about the prediction."""
    regimes = len(REGIMES_S) + 1
    return Band((min(lo, 1.0),) * regimes, (max(hi, 1.0),) * regimes)


WIDEST = everywhere(1.0 / UNKNOWN, UNKNOWN)


def band_from(table: Mapping[str, Any]) -> Band:
    """Return the band a calibration file holds."""
    return Band(tuple(map(float, table["lo"])), tuple(map(float, table["hi"])))


def interval_s(
    band: Band, latency_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and upper end of the 90 % interval of each latency.

    >>> lo, hi = interval_s(Band((0.5, 0.8, 0.9), (2.0, 1.2, 1.1)), np.array([1e-5, 1.0]))
    >>> hi.tolist()
    [2e-05, 1.1]
    """
    regime = np.searchsorted(REGIMES_S, latency_s, side="right")
    return latency_s * np.array(band.lo)[regime], latency_s * np.array(band.hi)[regime]
