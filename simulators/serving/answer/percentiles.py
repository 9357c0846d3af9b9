"""Mean, percentiles and maximum of latencies over requests.

Percentiles are numpy's, linear; those of ITL, of which there may be millions, come from a histogram
with bins 0.3 % wide.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at
from simulators.serving.engine.state import ReplicaState, gap_edges_s

SHARES = (0.5, 0.9, 0.95, 0.99)
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


class Spread(NamedTuple):
    """Mean, percentiles and the longest of one quantity."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    longest: float


NOTHING = Spread(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def spread(values: Floats) -> Spread:
    """Return the mean and percentiles of values over requests; zeros without values.

    >>> spread(np.array([1.0, 2.0, 3.0]))
    Spread(mean=2.0, p50=2.0, p90=2.8, p95=2.9, p99=2.98, longest=3.0)
    """
    return spreads(values[np.newaxis])[0] if values.size else NOTHING


def spreads(rows: Floats) -> list[Spread]:
    """Return how each row of a matrix is spread; a row holds one quantity of all requests."""
    count = rows.shape[1]
    if count == 0:
        return [NOTHING] * rows.shape[0]
    ordered = np.sort(rows)
    low, high, along = _places(count)
    left = ordered[:, low]
    at_shares = left + along * (ordered[:, high] - left)
    columns = np.column_stack((ordered.sum(axis=1) / count, at_shares, ordered[:, -1]))
    return [Spread(*row) for row in columns.tolist()]


def gap_spread(state: ReplicaState) -> Spread:
    """Return how all gaps between tokens are spread.

    The longest is exact, so a percentile may lie above it by the width of a bin.
    """
    bins = np.flatnonzero(state.gaps > 0)
    if bins.size == 0:
        return NOTHING
    counts = state.gaps[bins]
    below = np.cumsum(counts)
    total = int(below[-1])
    edges = gap_edges_s()
    ranks = np.array(SHARES) * total
    which = np.searchsorted(below, ranks)
    places = bins[which]
    inside = (ranks - below[which]) / counts[which] + 1.0
    shares = edges[places] + inside * (edges[places + 1] - edges[places])
    mean = float(state.gauge[:, at.GAPS_S].sum()) / total
    p50, p90, p95, p99 = shares.tolist()
    return Spread(mean, p50, p90, p95, p99, float(state.times[:, at.LONGEST_GAP].max()))


@functools.lru_cache(maxsize=64)
def _places(count: int) -> tuple[Ints, Ints, Floats]:
    """Return between which of as many ordered values the percentiles lie, and how far along."""
    places = np.array(SHARES) * (count - 1)
    low = places.astype(np.int64)
    return low, np.minimum(low + 1, count - 1), places - low
