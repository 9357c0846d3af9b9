"""Seconds of a call: alone, after the clocks have risen, with a cold cache, or in a loop.

What times is a backend: it marks moments between what it is given to run. On a GPU these are events
of a stream, on a CPU the host's clock; any other device, or a test, brings the same few functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Work = Callable[[], object]

RAMP_S, MOST_RAMPED = 0.1, 2000
"""Calls follow each other this long until clocks are what they stay at, and so many at most."""


class Event(Protocol):
    """A moment among what a device was given to run."""

    def record(self) -> None:
        """Take the moment when all that was given before is done."""

    def seconds_to(self, later: Any) -> float:
        """Return the time to a later moment, once both have come."""
        ...


class Backend(Protocol):
    """A device that runs what it is given, in order."""

    name: str
    """What the column `timing` calls it."""

    def synchronise(self) -> None:
        """Wait until all is done."""

    def event(self) -> Event:
        """Return a moment to be recorded: made beforehand, so that its making is not timed."""
        ...

    def run(self, work: Work) -> None:
        """Give it a call to run."""

    def evict(self) -> None:
        """Give it a write larger than its last cache."""

    def repeated(self, work: Work, times: int) -> Work:
        """Return so many calls as one, without the host in between where that can be."""
        ...


def alone_s(backend: Backend, work: Work, repeats: int) -> list[float]:
    """Return the seconds of calls of which each finds an idle device."""
    seconds = []
    for _ in range(repeats):
        backend.synchronise()
        seconds += _between_s(backend, [work])
    return seconds


def ramped_s(backend: Backend, work: Work, first_s: float) -> list[float]:
    """Return the seconds of the last of many calls in a row, when clocks have settled."""
    count = int(min(max(RAMP_S / first_s, 4.0), MOST_RAMPED))
    return _between_s(backend, [work] * count)[-max(count // 4, 1) :]


def cold_s(backend: Backend, work: Work, repeats: int) -> list[float]:
    """Return the seconds of calls of which each finds its operands outside the caches."""
    seconds = []
    for _ in range(repeats):
        events = [backend.event(), backend.event()]
        backend.evict()
        seconds += _recorded_s(backend, [work], events)
    return seconds


def looped_s(backend: Backend, work: Work, loop: int, repeats: int) -> list[float]:
    """Return the seconds of a call among so many like it."""
    together = backend.repeated(work, loop)
    backend.run(together)
    return [seconds / loop for seconds in _between_s(backend, [together] * repeats)]


def _between_s(backend: Backend, works: Sequence[Work]) -> list[float]:
    """Return the seconds of each of several calls, given one after another."""
    return _recorded_s(backend, works, [backend.event() for _ in range(len(works) + 1)])


def _recorded_s(backend: Backend, works: Sequence[Work], events: Sequence[Event]) -> list[float]:
    events[0].record()
    for work, event in zip(works, events[1:], strict=True):
        backend.run(work)
        event.record()
    backend.synchronise()
    return [start.seconds_to(end) for start, end in itertools.pairwise(events)]
