"""The engine that chooses: one other process for small work, one per core for more, then Ray.

A process is there in two seconds; starting Ray and hiring actors costs about ten. A few points
spread over the space are evaluated first (and not kept) to estimate the whole, in a process that
can be killed; not where the simulator's own guess leaves no doubt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sweeper.engines import Crew, Engine, Say, load_engine
from sweeper.engines._child import expect, probed
from sweeper.engines.chunks import UNTRIED_S
from sweeper.engines.probe import Estimate, hinted
from sweeper.engines.task import Task
from sweeper.space.spans import Batch
from sweeper.store.store import Part
from sweeper.units import human

_NO_DOUBT = 2.0
"""A guess may be off by this factor; where that changes nothing, no point is tried."""
_ONE, _SEVERAL, _RAY = range(3)
"""What is chosen: a process, several, or Ray actors."""


@dataclass(frozen=True)
class Auto:
    """One process, several, or Ray actors, by the estimated work.

    Args:
        worth_s: the CPU-seconds of work from which Ray is worth starting.
        actors: how many workers to hire; 0 takes one per core.
        several_s: the CPU-seconds of work from which more than one process is.
    """

    worth_s: float = 1200.0
    actors: int = 0
    several_s: float = 20.0

    @contextmanager
    def open(self) -> Iterator[_Choice]:
        """Hire nobody before the first round is known."""
        with ExitStack() as stack:
            yield _Choice(self, stack)


@dataclass
class _Choice:
    """The engine chosen at the first round, and chosen again once the rounds add up to more."""

    options: Auto
    stack: ExitStack
    crew: Crew | None = None
    estimate: Estimate | None = None
    asked: int = 0
    chosen: int = _ONE

    def prepare(self, task: Task) -> None:
        """Have a process load what the task needs while its first points are picked."""
        expect(task)

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        self.asked += total
        if self.estimate is None:
            self.estimate = self._guessed(task, total) or probed(task, total)
            if self.estimate.stopped:
                say(f"trying points: {self.estimate.stopped}")
        if self.crew is None or self._worth(self.estimate) > self.chosen:
            self.crew = self.stack.enter_context(self._choose(self.estimate, say).open())
        tried = self.estimate.probes or self.estimate.stopped
        # A guess that is too low would make first chunks too long; the others it can only shorten.
        expected_s = self.estimate.point_s if tried else max(self.estimate.point_s, UNTRIED_S)
        yield from self.crew.run(task, batches, total, say, point_s or expected_s)

    def _guessed(self, task: Task, total: int) -> Estimate | None:
        """Return what the simulator guesses, if the choice is the same were it well off."""
        guess = hinted(task.space, total)
        if guess is None:
            return None
        ends = guess.point_s / _NO_DOUBT, guess.point_s * _NO_DOUBT
        low, high = (self._worth(Estimate(0, point_s)) for point_s in ends)
        return guess if low == high else None

    @property
    def _workers(self) -> int:
        return self.options.actors or os.cpu_count() or 1

    def _worth(self, estimate: Estimate) -> int:
        """Return what is worth its start for what was asked so far; a search will ask as much."""
        work_s = estimate.point_s * self.asked
        if self._workers < 2 or work_s < min(self.options.several_s, self.options.worth_s):
            return _ONE
        return _SEVERAL if work_s < self.options.worth_s else _RAY

    def _choose(self, estimate: Estimate, say: Say) -> Engine:
        options, work_s = self.options, estimate.point_s * self.asked
        point, work = human(estimate.point_s, "s"), human(work_s, "s")
        source = "" if estimate.probes or estimate.stopped else " (the simulator's guess)"
        figures = f"{self.asked:,} points × {point} = {work} of work{source}"
        self.chosen = self._worth(estimate)
        if self.chosen == _RAY:
            say(f"auto chose ray: {figures}, over {options.worth_s:g} s")
            return load_engine("ray", actors=self._workers)
        if self.chosen == _SEVERAL:
            say(f"auto chose {self._workers} processes: {figures}, over {options.several_s:g} s")
            return load_engine("process", workers=self._workers)
        why = "one core" if self._workers < 2 else f"under {options.several_s:g} s"
        say(f"auto chose process: {figures}, {why}")
        return load_engine("process")


ENGINE = Auto
