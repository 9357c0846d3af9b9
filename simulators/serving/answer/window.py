"""The part of a run that rates are of: when its ramp is over, and before it is drained.

A benchmark's client counts from its first request to its last answer: then a server that fills up
and runs empty looks slower, and a token dearer, than in operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.serving.engine import replica as at
from simulators.serving.engine.state import ReplicaState

RAMP = 0.95
"""A service has filled up once as much time has passed as all but a few requests take: as long as
the long ones do not end, fewer end than come."""

LEAST_SHARE = 0.25
"""A window with fewer of the answered requests is none: such a run is all ramp and drain."""


class MeasurementWindow(NamedTuple):
    """A part of a run: rates count what is answered after its beginning, up to its end."""

    begin_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """How long it is."""
        return self.end_s - self.begin_s

    def holds(self, moments: Floats) -> NDArray[np.bool_]:
        """Say which moments lie in it."""
        found: NDArray[np.bool_] = (moments > self.begin_s) & (moments <= self.end_s)
        return found

    def mean_inside(self, arrival: Floats, end: Floats) -> float:
        """Return how many requests were in the system, in the mean over it."""
        within_s = np.minimum(end, self.end_s) - np.maximum(arrival, self.begin_s)
        return float(np.maximum(within_s, 0.0).sum()) / self.span_s


class Sums(NamedTuple):
    """What replicas did in some time, of all of them together."""

    block_seconds: float
    busy_s: float  # of all stages
    joules: float
    iterations: float
    batched: float  # requests, summed over iterations


def sums_within(
    state: ReplicaState, window: MeasurementWindow, whole: MeasurementWindow, pool: int = 0
) -> Sums:
    """Return what the replicas of a pool did within a window of the whole run.

    Sums of a replica are known at each of its answers, or where it reads prompts for others when it
    has read one, and at both ends of the run; from one of these moments to the next they grow
    evenly.
    """
    gauges = state.gauge[:, [at.BLOCK_SECONDS, at.BUSY_S, at.JOULES]]
    last = np.hstack((gauges, state.pool[:, [at.ITERATIONS, at.BATCHED_REQUESTS]]))
    times, readers = state.times, int(state.limits[at.PREFILL_REPLICAS])
    if readers and pool == 0:
        replica, ended, column, last = (
            state.request[:, at.PREFILL_REPLICA],
            at.PREFILL_END,
            at.PREFILL_SUMS,
            last[:readers],
        )
    else:
        replica, ended, column, last = (
            state.request[:, at.REPLICA] - readers,
            at.COMPLETED,
            at.SUMS,
            last[readers:],
        )
    if window == whole:
        return Sums(*last.sum(axis=0).tolist())
    answered = times[:, ended] >= 0.0
    grown = np.zeros(len(Sums._fields))
    for own, at_end in enumerate(last):
        mine = np.flatnonzero(answered & (replica == own))
        ended_s, kept = times[mine, ended], times[mine, column : column + at.SUM_COLUMNS]
        begin, end = (_sums_at(moment, whole, ended_s, kept, at_end) for moment in window)
        grown += end - begin
    return Sums(*grown.tolist())


def together(each: Sequence[Sums]) -> Sums:
    """Return what several pools did.

    >>> together([Sums(1.0, 2.0, 3.0, 4.0, 5.0)] * 2).joules
    6.0
    """
    return Sums(*map(sum, zip(*each, strict=True)))


def _sums_at(
    moment: float, whole: MeasurementWindow, ended_s: Floats, kept: Floats, at_end: Floats
) -> Floats:
    """Return the sums of a replica at a moment, between those before and after it.

    Of answers at one instant the first is the one that comes after, the last the one before.
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


def steady_part(times: Floats, clients: int = 0) -> MeasurementWindow | None:
    """Return a run of answered requests without its ramp and its drain; nothing of a short one.

    It ramps up for as long as nearly all requests take, from the first arrival, and is drained
    after the last. Where each of some clients asks again once it is answered, whole rounds of all
    of them count, without the first and the last: they may all be answered together. What is left
    must hold a quarter of the answers and last as long as a request does, or there was no steady
    part: requests that all end together are no rate.
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
