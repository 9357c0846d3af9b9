"""The chance that a time stays within a limit, given its 90 % interval.

Errors of predictions have more great ones among them than a normal distribution: they are taken to
be double exponential (Laplace, 1774), with a scale of its own on either side of the prediction,
which is the median. The upper end of the interval is exceeded one time in twenty, what lies as far
again in logarithms one time in two hundred.
"""

from __future__ import annotations

import math


def chance_of(limit: float, low: float, high: float) -> float:
    """Return the chance of being below a limit; it and both ends are shares of the prediction.

    The prediction is the median, also where an interval is stated that does not hold it.

    >>> [round(chance_of(limit, 0.5, 2.0), 3) for limit in (0.5, 1.0, 2.0, 4.0)]
    [0.05, 0.5, 0.95, 0.995]
    >>> chance_of(0.9, 1.0, 1.0), chance_of(1.0, 1.0, 1.0)
    (0.0, 1.0)
    >>> chance_of(1.1, 0.5, 0.9), chance_of(0.9, 1.1, 2.0)
    (1.0, 0.0)
    """
    room = math.log(limit)
    width = math.log(max(high, 1.0)) if room >= 0.0 else math.log(min(low, 1.0))
    if not width:
        return float(room >= 0.0)
    beyond: float = 0.5 * 10.0 ** (-room / width)
    return 1.0 - beyond if room >= 0.0 else beyond
