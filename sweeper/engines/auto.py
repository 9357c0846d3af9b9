"""The engine that chooses: small work is done in this process, large work by Ray actors.

Starting Ray and hiring actors costs about ten seconds. A few points spread over the space are
evaluated first (and not kept) to estimate the whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from simulators.core.contract import Hints, load_simulator
from sweeper.engines import Crew, Engine, Say, load_engine
from sweeper.engines.task import Task, evaluate
from sweeper.space.design_space import DesignSpace
from sweeper.space.spans import Batch, Index
from sweeper.store.store import Part
from sweeper.units import human

PROBES, PROBE_S = 64, 1.0
"""Points evaluated to estimate a sweep, and the time after which fewer will do."""


@dataclass(frozen=True)
class Estimate:
    """How long one point takes, from a few of them; no probes where the simulator guessed."""

    probes: int
    point_s: float


def hinted(space: DesignSpace, *, samples: int = PROBES) -> Estimate | None:
    """Return what the simulator itself guesses of points spread over the space, if it guesses."""
    simulator = load_simulator(space.simulator)
    if not isinstance(simulator, Hints):
        return None
    where = _spread(space, samples)
    batch = space.batch(where, space.kept(where))
    guesses = simulator.cost_hint_s(batch).sum() if batch.num_rows else 0.0
    return Estimate(0, float(guesses) / len(where))


def probe(space: DesignSpace, *, probes: int = PROBES, patience_s: float = PROBE_S) -> Estimate:
    """Evaluate points spread evenly over the space, keeping nothing, until patience ends."""
    simulator = load_simulator(space.simulator)
    order = np.random.default_rng(0).permutation(_spread(space, probes))
    allowed = space.kept(order)
    first = order[:1] if allowed is None else order[allowed][:1]
    spent, done, rows = 0.0, 0, 1
    evaluate(simulator, space.batch(first))  # loads and fills what later points find ready
    while done < len(order) and spent < patience_s:
        where = np.sort(order[done : done + rows])
        started = time.perf_counter()
        evaluate(simulator, space.batch(where, space.kept(where)))
        spent += time.perf_counter() - started
        done += len(where)
        rows *= 2
    return Estimate(done, spent / max(done, 1))


def _spread(space: DesignSpace, count: int) -> Index:
    """Return point numbers, one somewhere in each of `count` equal stretches of the space.

    Always in the middle, they could all share one value of the fastest axis.
    """
    count = min(count, len(space))
    places = np.arange(count) + np.random.default_rng(0).random(count)
    return np.unique((places / count * len(space)).astype(np.int64))


@dataclass(frozen=True)
class Auto:
    """Inline below `worth_s` seconds of estimated work, Ray above.

    Args:
        worth_s: the CPU-seconds of work from which Ray is worth starting.
        actors: how many to hire; 0 takes one per core.
        point_timeout_s: see the engine `ray`.
    """

    worth_s: float = 20.0
    actors: int = 0
    point_timeout_s: float = 600.0

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
    hired: bool = False

    def run(self, task: Task, batches: Iterable[Batch], total: int, say: Say) -> Iterator[Part]:
        self.asked += total
        if self.estimate is None:
            task.warm_up()
            self.estimate = probe(task.space)
        if self.crew is None or (not self.hired and self._is_worth_it(self.estimate)):
            self.crew = self.stack.enter_context(self._choose(self.estimate, say).open())
        yield from self.crew.run(task, batches, total, say)

    @property
    def _workers(self) -> int:
        return self.options.actors or os.cpu_count() or 1

    def _is_worth_it(self, estimate: Estimate) -> bool:
        """Return whether what was asked so far is worth actors: a search will ask as much again."""
        return self._workers > 1 and estimate.point_s * self.asked >= self.options.worth_s

    def _choose(self, estimate: Estimate, say: Say) -> Engine:
        options, work_s = self.options, estimate.point_s * self.asked
        point, work = human(estimate.point_s, "s"), human(work_s, "s")
        figures = f"{self.asked:,} points × {point} = {work} of work"
        self.hired = self._is_worth_it(estimate)
        if not self.hired:
            why = "one core" if self._workers < 2 else f"under {options.worth_s:g} s"
            say(f"auto chose inline: {figures}, {why}")
            return load_engine("inline")
        say(f"auto chose ray: {figures}, over {options.worth_s:g} s")
        return load_engine("ray", actors=self._workers, point_timeout_s=options.point_timeout_s)


ENGINE = Auto
