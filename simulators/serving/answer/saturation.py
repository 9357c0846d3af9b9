"""Whether a service falls behind: whether the later a request comes, the longer it must wait.

Behind a service of less than the rate of arrivals the queue grows as long as they go on: a request
that comes at time t waits (rho - 1) t. So what is looked at is the slope of waits over arrivals, by
least squares: it does not depend on how many GPUs there are, nor on how long a request takes, and a
burst that is worked off again leaves none. A service whose batch may grow without end lets nobody
wait, but takes ever longer; of that the second half of a long run tells.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats

FALLS_BEHIND = 0.05
"""Seconds of wait a second from which a service falls behind: a load 5 % above what it carries."""

SLOWS_DOWN = 0.1
"""The same for the time a request takes in all, in the second half of a run."""

DEVIATIONS = 3.0
"""Standard errors by which a slope must exceed chance."""

LONG = 4.0
"""Median times of a request after which a run is long enough to tell that they grow."""

FEWEST = 8
"""Requests of which a slope says something."""


def backlog_growth(arrival: Floats, scheduled: Floats) -> float:
    """Return by how many seconds longer requests wait for each second that they come later.

    >>> came = np.arange(100.0)
    >>> round(backlog_growth(came, 1.25 * came), 3)
    0.25
    """
    return _slope(arrival, scheduled - arrival)[0]


def is_saturated(growth: float, arrival: Floats, end: Floats) -> bool:
    """Return whether a service falls behind: by its queue's growth, or as it slows down."""
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
