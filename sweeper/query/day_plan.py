"""Replicas over a day: the need of each load, with start-up times and cool-down times.

A replica that serves at time t has started `startup_s` before and stays for `cool_down_s` after, so
the number of replicas is the largest need from `cool_down_s` before to `startup_s` after t. Days
repeat. Times are rounded up to minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simulators.core.jit import Ints

MINUTES = 24 * 60


def by_minute(starts_h: Sequence[float], needs: Sequence[int]) -> Ints:
    """Return the need of every minute of a day.

    >>> by_minute([0.0, 12.0], [1, 3]).sum()
    np.int64(2880)
    """
    edges = [round(60 * h) for h in starts_h] + [MINUTES]
    return np.repeat(np.asarray(needs, np.int64), np.diff(edges))


def running(needs: Ints, startup_s: float, cool_down_s: float) -> Ints:
    """Return the number of running replicas in each minute, from the number of needed ones.

    >>> day = by_minute([0.0, 12.0, 18.0], [1, 3, 1])
    >>> (running(day, 600.0, 1200.0) - day).sum()
    np.int64(60)
    """
    ahead, after = (math.ceil(s / 60.0) for s in (startup_s, cool_down_s))
    found = needs.copy()
    for shift in range(-min(ahead, MINUTES), min(after, MINUTES) + 1):
        found = np.maximum(found, np.roll(needs, shift))
    return found
