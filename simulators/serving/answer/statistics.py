"""Means and percentiles of latencies over requests, and of the gaps between tokens.

Percentiles are numpy's, linear; those of ITL come from a histogram with bins 0.3 % wide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulators.core.jit import Floats
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.engine.token_gaps import gap_edges_s

QUANTILES = (0.5, 0.9, 0.95, 0.99)
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


class Statistics(NamedTuple):
    """Mean, percentiles and maximum of one quantity."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    longest: float


def statistics_of(values: Floats) -> Statistics | None:
    """Return the statistics of values over requests; None without values.

    >>> statistics_of(np.array([1.0, 2.0, 3.0]))
    Statistics(mean=2.0, p50=2.0, p90=2.8, p95=2.9, p99=2.98, longest=3.0)
    """
    return row_statistics(values[np.newaxis])[0] if values.size else None


def row_statistics(rows: Floats) -> list[Statistics]:
    """Return the statistics of each row of a matrix of shape (quantities, requests)."""
    count = rows.shape[1]
    ordered = np.sort(rows)
    places = np.array(QUANTILES) * (count - 1)
    low = places.astype(np.int64)
    left, right = ordered[:, low], ordered[:, np.minimum(low + 1, count - 1)]
    at_shares = left + (places - low) * (right - left)
    columns = np.column_stack((ordered.sum(axis=1) / count, at_shares, ordered[:, -1]))
    return [Statistics(*row) for row in columns.tolist()]


def gap_statistics(state: ReplicaState) -> Statistics | None:
    """Return the statistics of all gaps between tokens; None without gaps.

    The maximum is exact and limits the percentiles, which are known to the width of a bin.
    """
    bins = np.flatnonzero(state.gaps > 0)
    if bins.size == 0:
        return None
    counts = state.gaps[bins]
    below = np.cumsum(counts)
    total = int(below[-1])
    edges = gap_edges_s()
    ranks = np.array(QUANTILES) * total
    which = np.searchsorted(below, ranks)
    places = bins[which]
    inside = (ranks - below[which]) / counts[which] + 1.0
    shares = edges[places] + inside * (edges[places + 1] - edges[places])
    mean = float(state.gauge[:, at.GAPS_S].sum()) / total
    longest = float(state.times[:, at.LONGEST_GAP].max())
    p50, p90, p95, p99 = np.minimum(shares, longest).tolist()
    return Statistics(mean, p50, p90, p95, p99, longest)
