"""Mean, percentiles and longest say how a latency is spread over requests.

Percentiles are numpy's, linear; those of ITL, of which there may be millions, come from a histogram
with bins 0.3 % wide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats
from simulators.serving.replica import LONGEST_GAP
from simulators.serving.world import GAPS_S, World, gap_edges_s

SHARES = (0.5, 0.9, 0.95, 0.99)


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
    """Return how values over requests are spread; of nothing, zeros.

    >>> spread(np.array([1.0, 2.0, 3.0]))
    Spread(mean=2.0, p50=2.0, p90=2.8, p95=2.9, p99=2.98, longest=3.0)
    """
    if values.size == 0:
        return NOTHING
    ordered = np.sort(values)
    p50, p90, p95, p99 = (_at(ordered, share) for share in SHARES)
    return Spread(float(ordered.sum()) / values.size, p50, p90, p95, p99, float(ordered[-1]))


def gap_spread(world: World) -> Spread:
    """Return how all gaps between tokens are spread.

    The longest is exact, so a percentile may lie above it by the width of a bin.
    """
    counts = world.gaps
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    below = np.cumsum(counts)
    edges = gap_edges_s()
    ranks = np.array(SHARES) * total
    places = np.searchsorted(below, ranks)
    inside = (ranks - below[places]) / counts[places] + 1.0
    shares = edges[places] + inside * (edges[places + 1] - edges[places])
    mean = float(world.gauge[:, GAPS_S].sum()) / total
    p50, p90, p95, p99 = shares.tolist()
    return Spread(mean, p50, p90, p95, p99, float(world.times[:, LONGEST_GAP].max()))


def _at(ordered: Floats, share: float) -> float:
    place = share * (ordered.size - 1)
    low = int(place)
    high = min(low + 1, ordered.size - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
