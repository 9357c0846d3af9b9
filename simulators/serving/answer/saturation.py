"""Saturation of a run: requests arrive faster than the replicas complete them.

With a load rho above 1 the queue grows while requests arrive: a request that arrives at time t
waits (rho - 1) t. The growth is the least-squares slope of waits over arrival times. The slope does
not depend on the number of GPUs or on the service time, and a burst that is worked off leaves no
slope. If the batch may grow without limit, requests do not wait but take ever longer; a second
slope, of times in system over the later half of a long run, detects this.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats

FALLS_BEHIND = 0.05
"""Growth of the wait, in s/s, above which a run is saturated: a load 5 % above capacity."""

SLOWS_DOWN = 0.1
"""The same limit for the time in system, in the later half of a run."""

DEVIATIONS = 3.0
"""Standard errors by which a slope must exceed zero."""

LONG = 4.0
"""Length of a run, in median times in system, from which growth of these times is tested."""

FEWEST = 8
"""Fewest requests for which a slope is computed."""


def backlog_growth(arrival: Floats, scheduled: Floats) -> float:
    """Return the growth of waiting times over arrival times, in s/s.

    >>> came = np.arange(100.0)
    >>> round(backlog_growth(came, 1.25 * came), 3)
    0.25
    """
    return _slope(arrival, scheduled - arrival)[0]


def is_saturated(growth: float, arrival: Floats, end: Floats) -> bool:
    """Return whether a run is saturated: its queue grows, or its requests take ever longer."""
    if growth > FALLS_BEHIND:
        return True
    taken_s, span_s = end - arrival, float(np.ptp(arrival))
    if span_s < LONG * float(np.median(taken_s)):
        return False
    late = arrival >= arrival.min() + span_s / 2.0
    slope, error = _slope(arrival[late], taken_s[late])
    return slope > max(SLOWS_DOWN, DEVIATIONS * error)


def _slope(moments: Floats, values: Floats) -> tuple[float, float]:
    """Return the slope of values over moments by least squares, and its standard error."""
    if moments.size < FEWEST:
        return 0.0, 0.0
    x, y = moments - moments.mean(), values - values.mean()
    squares = float((x * x).sum())
    if squares <= 0.0:
        return 0.0, 0.0
    slope = float((x * y).sum()) / squares
    rest = y - slope * x
    return slope, float(np.sqrt((rest * rest).sum() / (moments.size - 2) / squares))
