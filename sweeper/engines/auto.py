"""Engine `auto`: a child process for little work, a process per core for more, then Ray.

A process starts in two seconds, Ray in about ten. The work is estimated from a few points, which a
child process evaluates without storing rows, unless the simulator's own guess suffices.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sweeper.engines import Engine, Pool, Say, load_engine
from sweeper.engines.chunks import UNTRIED_S, Estimate, hinted
from sweeper.engines.process import probed
from sweeper.engines.task import Task
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch
from sweeper.store.store import Part, count_allowed
from sweeper.text import counted, human

_GUESS_ERROR = 2.0
"""Error factor of a guess; where this error cannot change the choice, no point is probed."""
_COUNTED = 1 << 20
"""Most points of which those that meet the constraints are counted, not estimated."""
_ONE, _SEVERAL, _RAY = range(3)  # choices: a process, several, or Ray actors


@dataclass(frozen=True)
class Auto:
    """One process, several, or Ray actors, by the estimated work.

    Args:
        worth_s: work from which Ray is started, in CPU-seconds.
        actors: number of workers; 0 takes one per core.
        several_s: work from which more than one process is started, in CPU-seconds.
    """

    worth_s: float = 1200.0
    actors: int = 0
    several_s: float = 20.0

    @contextmanager
    def open(self) -> Iterator[_Choice]:
        """Return a pool that chooses its engine at the first round."""
        with ExitStack() as stack:
            yield _Choice(self, stack)


@dataclass
class _Choice:
    """A pool whose engine is chosen again when the work of all rounds has grown."""

    options: Auto
    stack: ExitStack
    pool: Pool | None = None
    estimate: Estimate | None = None
    asked: int = 0
    designs: int = 0  # of the points asked for, those that meet the constraints
    chosen: int = _ONE

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        batches = list(batches)
        self.asked += total
        self.designs += _allowed(task.space, batches, total)
        if self.estimate is None:
            self.estimate = self._guessed(task, total) or probed(task, total)
            if self.estimate.stopped:
                say(f"trying points: {self.estimate.stopped}")
        if self.pool is None or self._worth(self.estimate) > self.chosen:
            self.pool = self.stack.enter_context(self._choose(self.estimate, say).open())
        tried = self.estimate.probes or self.estimate.stopped
        # A guess that is too low would make first chunks too long.
        expected_s = self.estimate.point_s if tried else max(self.estimate.point_s, UNTRIED_S)
        yield from self.pool.run(task, batches, total, say, point_s or expected_s)

    def _guessed(self, task: Task, total: int) -> Estimate | None:
        """Return the simulator's guess; None if its error could change the choice."""
        guess = hinted(task.space, total)
        if guess is None:
            return None
        ends = guess.point_s / _GUESS_ERROR, guess.point_s * _GUESS_ERROR
        low, high = (self._worth(Estimate(0, point_s)) for point_s in ends)
        return guess if low == high else None

    @property
    def _workers(self) -> int:
        return self.options.actors or os.cpu_count() or 1

    def _worth(self, estimate: Estimate) -> int:
        """Return the choice for the work of all rounds so far."""
        work_s = estimate.point_s * self.asked
        if self._workers < 2 or work_s < min(self.options.several_s, self.options.worth_s):
            return _ONE
        return _SEVERAL if work_s < self.options.worth_s else _RAY

    def _choose(self, estimate: Estimate, say: Say) -> Engine:
        work_s = estimate.point_s * self.asked
        each, work = human(work_s / max(self.designs, 1), "s"), human(work_s, "s")
        figures = f"{counted(self.designs, 'design')} at {each} each, about {work} of work"
        self.chosen = self._worth(estimate)
        count = self._workers
        names = ("1 process", f"{count} processes", f"Ray with {count} workers")
        say(f"using {names[self.chosen]} ({figures})")
        if self.chosen == _RAY:
            return load_engine("ray", actors=count)
        return load_engine("process", workers=count if self.chosen == _SEVERAL else 1)


def _allowed(space: DesignSpace, batches: Sequence[Batch], total: int) -> int:
    """Return the number of points that meet the constraints."""
    if total > _COUNTED:
        return round(total * space.share)
    return sum(count_allowed(space, batch) for batch in batches)


ENGINE = Auto
