"""The probability that a cheap model screened out a design that is good enough.

A cheap model predicts a ratio of each design, which must be at most 1. Some designs are evaluated,
and show the errors ln(true / predicted). A design with a predicted ratio r is good enough where its
error is below -ln(r). The tail below the observed errors is exponential beyond a low quantile, with
an upper bound of its mean excess (peaks over threshold; Pickands, "Statistical inference using
extreme order statistics", 1975).
"""

from __future__ import annotations

import math

import numpy as np

from simulators.core.jit import Floats

QUANTILE = 0.1
"""Share of the errors that make the tail."""
LEAST = 20
"""Least number of errors; with fewer, nothing is excluded."""
Z95 = 1.6448536269514722
"""Standard deviations of the one-sided 95 % bound of the mean excess."""


def tail_probabilities(errors: Floats, ends: Floats) -> Floats:
    """Return an upper bound of the probability of an error below each end.

    >>> errors = np.linspace(0.0, 1.0, 101)
    >>> tail_probabilities(errors, np.array([0.5, -1.0])).round(4).tolist()
    [0.5098, 0.0]
    >>> tail_probabilities(errors[:5], np.array([-1.0])).tolist()
    [1.0]
    """
    known = np.sort(errors[np.isfinite(errors)])
    if known.size < LEAST:
        return np.ones(ends.size)
    count = np.searchsorted(known, ends, side="right")
    found = (1.0 + count) / (known.size + 1.0)
    size = max(math.ceil(QUANTILE * known.size), 2)
    start = known[size]
    excess = start - known[:size]
    mean = float(excess.mean()) * (1.0 + Z95 / math.sqrt(size))
    is_tail = ends < start
    depth = np.where(is_tail, start - ends, 0.0) / max(mean, 1e-12)
    tail = (size + 1.0) / (known.size + 1.0) * np.exp(-np.minimum(depth, 700.0))
    return np.where(is_tail, np.minimum(tail, 1.0), np.minimum(found, 1.0))
