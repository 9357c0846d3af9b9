"""Measurement window: the part of a run between ramp-up and drain, and the work done within it.

Benchmark clients count from the first request to the last answer, which includes ramp-up and drain
and so underestimates throughput and overestimates cost in operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState

RAMP = 0.95
"""Quantile of the time in system that the ramp-up lasts: before then, fewer requests complete than
arrive."""

LEAST_SHARE = 0.25
"""A window must hold this share of all completed requests; else the run has no steady part."""


class MeasurementWindow(NamedTuple):
    """A time interval of a run, open at the start: rates count completions inside."""

    begin_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """Return the length of the window."""
        return self.end_s - self.begin_s

    def holds(self, times_s: Floats) -> NDArray[np.bool_]:
        """Return a mask of the times inside the window."""
        found: NDArray[np.bool_] = (times_s > self.begin_s) & (times_s <= self.end_s)
        return found

    def mean_inside(self, arrival: Floats, end: Floats) -> float:
        """Return the mean number of requests in the system within the window."""
        within_s = np.minimum(end, self.end_s) - np.maximum(arrival, self.begin_s)
        return float(np.maximum(within_s, 0.0).sum()) / self.span_s


class Sums(NamedTuple):
    """Work of all replicas over some time."""

    block_seconds: float
    busy_s: float  # of all stages
    joules: float
    iterations: float
    batched: float  # requests, summed over iterations


def sums_within(
    state: ReplicaState, window: MeasurementWindow, whole: MeasurementWindow, pool: int = 0
) -> Sums:
    """Return the work of a pool's replicas within a window of the whole run.

    The sums of a replica are recorded whenever a request completes (on a prefill replica, whenever
    a prefill ends) and at both ends of the run. Between these times sums are interpolated.
    """
    gauges = state.gauge[:, [at.BLOCK_SECONDS, at.BUSY_S, at.JOULES]]
    last = np.hstack((gauges, state.pool[:, [at.ITERATIONS, at.BATCHED_REQUESTS]]))
    times, prefill_replicas = state.times, int(state.limits[at.PREFILL_REPLICAS])
    if prefill_replicas and pool == 0:
        replica, last = state.request[:, at.PREFILL_REPLICA], last[:prefill_replicas]
        ended, column = at.PREFILL_END, at.PREFILL_SUMS
    else:
        replica = state.request[:, at.REPLICA] - prefill_replicas
        last, ended, column = last[prefill_replicas:], at.LAST_TOKEN, at.SUMS
    if window == whole:
        return Sums(*last.sum(axis=0).tolist())
    answered = times[:, ended] >= 0.0
    increase = np.zeros(len(Sums._fields))
    for own, at_end in enumerate(last):
        mine = times[answered & (replica == own)]
        ended_s, kept = mine[:, ended], mine[:, column : column + at.SUM_COLUMNS]
        begin, end = (_sums_at(moment, whole, ended_s, kept, at_end) for moment in window)
        increase += end - begin
    return Sums(*increase.tolist())


def total_work(work_by_pool: Sequence[Sums]) -> Sums:
    """Return the work of several pools.

    >>> total_work([Sums(1.0, 2.0, 3.0, 4.0, 5.0)] * 2).joules
    6.0
    """
    return Sums(*map(sum, zip(*work_by_pool, strict=True)))


def _sums_at(
    moment: float, whole: MeasurementWindow, ended_s: Floats, kept: Floats, at_end: Floats
) -> Floats:
    """Return the sums of a replica at a time, interpolated between the completions around it.

    Among simultaneous completions, the first one counts as next and the last one as previous.
    """
    begin_s, before, end_s, after = whole.begin_s, np.zeros_like(at_end), whole.end_s, at_end
    past = ended_s < moment
    if past.any():
        begin_s = ended_s[past].max()
        before = kept[np.flatnonzero(ended_s == begin_s)[-1]]
    if not past.all():
        end_s = ended_s[~past].min()
        after = kept[np.flatnonzero(ended_s == end_s)[0]]
    passed_s = end_s - begin_s
    share = (moment - begin_s) / passed_s if passed_s else 1.0
    found: Floats = before + share * (after - before)
    return found


def steady_window(times: Floats, clients: int = 0) -> MeasurementWindow | None:
    """Return the window without ramp-up and drain, or None for a run without a steady part.

    Open loop: the ramp-up starts at the first arrival and lasts as long as nearly all requests
    take; the drain starts at the last arrival. Closed loop: the window holds whole rounds of all
    clients without the first and the last, because all clients may complete together. The window
    must hold a quarter of the completed requests and last at least as long as the ramp-up.
    """
    if not len(times):
        return None
    arrival, end = times[:, at.ARRIVAL], times[:, at.COMPLETED]
    ramp_s = float(np.quantile(end - arrival, RAMP))
    window = MeasurementWindow(float(arrival.min()) + ramp_s, float(arrival.max()))
    if 0 < 2 * clients < end.size:
        rounds = np.sort(end)[clients - 1 :: clients]
        window = MeasurementWindow(float(rounds[0]), float(rounds[end.size // clients - 2]))
    held = np.count_nonzero(window.holds(end))
    return window if window.span_s >= ramp_s > 0.0 and held >= LEAST_SHARE * end.size else None
