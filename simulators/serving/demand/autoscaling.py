"""Autoscaling: the number of replicas over time, and the replica-seconds that are paid for.

At every interval the arrival rate gives the wanted replicas, `ceil(rate / replica_qps)`; the
maximum over the last `scale_down_s` is kept (Kubernetes' horizontal autoscaler with a request
metric: interval 15 s, stabilisation window 300 s by default). A started replica receives requests
after `startup_s`. A stopped replica receives no more and completes its requests. The plan depends
on the arrivals alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Floats, Ints
from simulators.serving.point import ServingPoint


@dataclass(frozen=True)
class AutoscalingPlan:
    """The number of replicas over time; they start in order and stop in reverse order."""

    looks_s: Floats  # when their number may change
    wanted: Ints  # replicas from each look on, those that are starting included
    startup_s: float
    routable: Ints  # per request, how many take it

    def paid_s(
        self, replica: Ints, arrival_s: Floats, end_s: Floats, span: tuple[float, float]
    ) -> float:
        """Return the replica-seconds that are paid for within a span.

        A replica is paid from its start until it is stopped and drained; overlapping runs of one
        replica count once.
        """
        begin, end = span
        paid = 0.0
        for i in range(int(self.wanted.max())):
            mine, paid_until = replica == i, begin
            for start, stop in self._runs(i, end):
                inside = mine & (arrival_s >= start) & (arrival_s <= stop)
                drained = float(end_s[inside].max(initial=stop))
                paid += max(0.0, min(end, drained) - max(paid_until, start))
                paid_until = max(paid_until, drained)
        return paid

    def _runs(self, replica: int, end_s: float) -> list[tuple[float, float]]:
        """Return from when until when a replica is wanted."""
        on = np.concatenate([[False], self.wanted > replica, [False]])
        moments = np.append(self.looks_s, max(end_s, float(self.looks_s[-1])))
        starts, stops = (np.flatnonzero(on[1:] & ~on[:-1]), np.flatnonzero(on[:-1] & ~on[1:]))
        return list(zip(moments[starts].tolist(), moments[stops].tolist(), strict=True))


def plan_of(point: ServingPoint, arrival_s: Floats) -> AutoscalingPlan:
    """Return the replicas of a design over the arrivals of its requests, in their order."""
    every, keep = (
        point.autoscaling.interval_s,
        int(np.ceil(point.autoscaling.scale_down_s / point.autoscaling.interval_s)),
    )
    looks = np.arange(0.0, float(arrival_s[-1]) + every, every)
    seen = np.searchsorted(arrival_s, looks, side="right")
    rate = np.diff(seen, prepend=0) / every
    least = point.autoscaling.min_replicas
    asked = np.clip(np.ceil(rate / point.autoscaling.replica_qps), least, point.replicas).astype(
        np.int64
    )
    asked[0] = least
    wanted = np.array([asked[max(0, i - keep) : i + 1].max() for i in range(asked.size)], np.int64)
    return AutoscalingPlan(
        looks, wanted, point.autoscaling.startup_s, _routable(looks, wanted, point, arrival_s)
    )


def _routable(looks: Floats, wanted: Ints, point: ServingPoint, arrival_s: Floats) -> Ints:
    """Return the replicas that can receive each request: wanted for at least `startup_s`."""
    look = np.searchsorted(looks, arrival_s, side="right") - 1
    ready = np.searchsorted(looks, arrival_s - point.autoscaling.startup_s, side="right") - 1
    pairs, which = np.unique(np.stack((ready, look)), axis=1, return_inverse=True)
    least = int(wanted[0])
    count = [
        max(least, int(wanted[then : now + 1].min())) if then >= 0 else least
        for then, now in pairs.T.tolist()
    ]
    return np.array(count, np.int64)[which.reshape(-1)]
