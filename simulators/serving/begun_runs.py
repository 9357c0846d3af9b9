"""Runs that have begun and wait to go on: they halt before a request comes, as if they never had.

Where there is no room for all, those that nobody has asked for in the longest time are forgotten,
and begin again if somebody does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from os import cpu_count
from typing import TypeVar

import numpy as np

from simulators.core.jit import Floats, Ints
from simulators.serving.answer.served_alike import Likeness
from simulators.serving.answer.summary import Run
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.state import GAP_BINS, State
from simulators.serving.point import ServingPoint
from simulators.serving.ready import Ready

T = TypeVar("T")

ROOM_BYTES, BEFORE_KEPT = 1 << 29, 1 << 7
"""For the runs that wait; and how many sets of requests are kept that have not come."""


@dataclass
class Halted:
    """A run before the request of some number comes; of as many as there are it has ended.

    Of requests that have not come nothing is kept but what a run begins with, nor of bins that are
    empty.
    """

    ready: Ready
    come: int = 0
    kept: State | None = None
    bins: Ints | None = None  # of the gaps that are kept
    bytes: int = 0  # what it takes to keep it, but for the tables that others read too
    begun: float = 0.0  # the share of the run that was simulated while it was only to begin
    likeness: Likeness | None = None  # says of whom it is the beginning

    def go_on(self, come: int) -> State:
        """Return the state before another request, or at the end."""
        state = self._whole()
        if come > self.come:
            self.come, count = come, state.times.shape[0]
            self.begun = come / count if come < count else self.begun
            halt = float(state.times[come, at.ARRIVAL]) if come < count else inf
            self.ready.go_on(state, halt)
            self._keep(state)
        return state

    def _keep(self, state: State) -> None:
        self.bins = np.flatnonzero(state.gaps)
        self.kept = state._replace(
            request=state.request[: self.come].copy(),
            times=state.times[: self.come].copy(),
            draws=state.draws[:0],
            gaps=state.gaps[self.bins],
        )
        self.bytes = sum(array.nbytes for array in self.kept) - self.kept.table.nbytes

    def apart(self) -> Halted:
        """Return the same, which stays where it is when this goes on."""
        assert self.kept is not None
        own = {n: a.copy() for n, a in self.kept._asdict().items() if n not in ("table", "shape")}
        if self.kept.priced is self.kept.step:  # what is one array stays one
            own["priced"] = own["step"]
        return replace(self, kept=self.kept._replace(**own))

    def within(self, ready: Ready) -> Halted:
        """Return it as the run of a design that is served alike so far, within other limits."""
        found, state, fresh = replace(self, ready=ready), self.apart()._whole(), ready.begin()
        for name in ("idle", "batch", "tokens"):
            old, new = getattr(state, name), getattr(fresh, name)
            width = min(old.shape[1], new.shape[1])
            new[:, :width] = old[:, :width]
        pool = state.pool.copy()
        pool[:, at.TOTAL] = fresh.pool[:, at.TOTAL]
        pool[:, at.FREE] += pool[:, at.TOTAL] - state.pool[:, at.TOTAL]
        names = ("limits", "own", "idle", "batch", "tokens")
        found._keep(state._replace(pool=pool, **{name: getattr(fresh, name) for name in names}))
        return found

    def _whole(self) -> State:
        """Return a state that can go on."""
        if self.kept is None:
            return self.ready.begin()
        before = _before_all(self.ready)
        request, times, draws = before[0].copy(), before[1].copy(), before[2].copy()
        request[: self.come], times[: self.come] = self.kept.request, self.kept.times
        gaps = np.zeros(GAP_BINS, np.int64)
        gaps[self.bins] = self.kept.gaps
        return self.kept._replace(request=request, times=times, draws=draws, gaps=gaps)


def _before_all(ready: Ready) -> tuple[Ints, Floats, Floats]:
    """Return the requests of a run, their times and draws before the first of them."""
    key = id(ready.let_in), ready.pools[0].replicas, ready.frontend
    if key not in BEFORE:
        if len(BEFORE) == BEFORE_KEPT:
            BEFORE.pop(next(iter(BEFORE)), None)
        state = ready.begin()
        BEFORE[key] = ready.let_in, (state.request, state.times, state.draws)
    return BEFORE[key][1]


BEFORE: dict[object, tuple[Requests, tuple[Ints, Floats, Floats]]] = {}
"""What runs of some requests begin with, and the requests, so that they stay what they are."""
HALTED: dict[ServingPoint, Halted] = {}
"""The runs that wait in this process, by design."""
WENT_ON: dict[ServingPoint, float] = {}
"""Which share of a run that has ended was simulated before anybody asked for its end."""


def halted(ready: Ready, alike: Sequence[Halted] = ()) -> Halted:
    """Return the run of a design that waits; it waits from now on.

    One that does not wait begins, or goes on from another that was served alike.
    """
    known = HALTED.pop(ready.point, None)
    if known is None or not _is_of(known, ready):
        known = Halted(ready)
        for other in alike:
            if other.likeness and other.likeness.holds_for(ready.limits, ready.rejected):
                known = other.within(ready)
    HALTED[ready.point] = known
    return known


def _is_of(run: Halted, ready: Ready) -> bool:
    """Return whether a run is that of a deployment: it was looked up with the same outcome."""
    if run.ready is ready:
        return True
    limits, pairs = run.ready.limits == ready.limits, zip(run.ready.read, ready.read, strict=True)
    return limits and all(np.array_equal(one, other) for one, other in pairs)


def forget_some() -> None:
    """Forget the runs that nobody has asked for in the longest time, where there is no room."""
    left = sum(run.bytes for run in HALTED.values())
    while left > ROOM_BYTES:
        left -= HALTED.pop(next(iter(HALTED))).bytes


def end_together(points: Iterable[ServingPoint]) -> None:
    """Let the runs of some designs end that have begun."""
    waiting = [HALTED[point] for point in points if point in HALTED]
    at_once(lambda run: run.go_on(run.ready.requests), waiting)


def run_out(ready: Ready) -> Run:
    """Return the run of a deployment: what is left of one that has begun, or all of it."""
    waiting = HALTED.pop(ready.point, None)
    if waiting is None or not _is_of(waiting, ready):
        return ready.run()
    WENT_ON[ready.point] = waiting.begun
    return ready.ended(waiting.go_on(ready.requests))


def at_once(work: Callable[[T], object], items: Sequence[T]) -> None:
    """Do the same with each of some things, on all cores: compiled loops run side by side."""
    if len(items) < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(cpu_count() or 1) as threads:
        for _ in threads.map(work, items):
            pass
