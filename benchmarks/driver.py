"""Saturation of the driver loop with up to ten thousand simulated actors.

The actors live in this process. An actor answers when the simulated time of the work is over, on
a clock that counts the CPU time of the driver and skips idle time. The table has seconds per
message, and the share of actor time spent waiting for the driver. `--ray` adds the time of Ray per
message.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.sweep_overhead import OBJECTIVES, space
from simulators.core.checks import Check, print_checks
from sweeper.engines.chunks import LAST_S
from sweeper.engines.pool import Worker, WorkerPool
from sweeper.engines.task import Task
from sweeper.report.progress import Progress
from sweeper.space.points import Batch, Span
from sweeper.store.keys import define
from sweeper.store.store import Part, Store

_POINT_S = 1e-2
_MESSAGES = 30_000
"""Fewest messages, each of at most eight seconds of work; three per actor."""


@dataclass
class Clock:
    """CPU time of this process plus skipped idle time."""

    leapt_s: float = 0.0
    due: list[float] = field(default_factory=list)

    def now(self) -> float:
        """Return the seconds on this clock."""
        return time.process_time() + self.leapt_s

    def leap(self) -> None:
        """Skip to the time of the next answer."""
        while self.due and self.due[0] <= self.now():
            heapq.heappop(self.due)
        if self.due:
            self.leapt_s += max(0.0, self.due[0] - self.now())


class SimulatedActor(Worker):
    """Actor with a fixed time per point, which writes nothing."""

    def __init__(self, name: str, clock: Clock, point_s: float) -> None:
        super().__init__(name)
        self.clock, self.point_s = clock, point_s
        self.due_s, self.part = 0.0, Part("", 0, {}, {}, np.ones((1, 3)), 0.0)

    def load(self, task: Task) -> None:
        """Load nothing."""

    def is_loaded(self) -> bool:
        """Return that the actor is ready."""
        return True

    def submit(self, batch: Batch) -> None:
        """Start the batch."""
        seconds, rows = len(batch) * self.point_s, {"ok": len(batch)}
        self.due_s = self.clock.now() + seconds
        self.part = replace(self.part, points=len(batch), rows=rows, seconds=seconds)
        heapq.heappush(self.clock.due, self.due_s)

    def poll(self) -> list[Part] | None:
        """Return the answer once it is due."""
        return None if self.due_s > self.clock.now() else [self.part]

    def shut_down(self) -> None:
        """Kill nothing."""


class SimulatedPool(WorkerPool):
    """A pool of simulated actors."""

    engine, ready_s = "simulated", 60.0

    def __init__(self, wanted: int, point_s: float) -> None:
        super().__init__(wanted)
        self.clock, self.point_s = Clock(), point_s

    def spawn(self, name: str) -> SimulatedActor:
        """Return a new actor."""
        return SimulatedActor(name, self.clock, self.point_s)

    def wait(self, workers: Sequence[Any], seconds: float) -> list[Any]:  # noqa: ARG002
        """Skip to the next answer, and return the actors with answers."""
        self.clock.leap()
        now = self.clock.now()
        return [w for w in workers if w.job and w.due_s <= now]

    def obstacle(self, workers: Sequence[Any]) -> str:  # noqa: ARG002
        """Return no obstacle."""
        return ""


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--actors", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--ray", action="store_true", help="and a message of Ray's")
    chosen = parser.parse_args()
    checks = [check for count in chosen.actors for check in driven(count)]
    checks += ray_message() if chosen.ray else []
    print_checks(checks, as_json=chosen.json)


def driven(count: int) -> Iterator[Check]:
    """Yield the loop's time per message for several numbers of actors."""
    each = max(3, _MESSAGES // count)
    grid, points = space(50), int(count * each * LAST_S / _POINT_S)
    with tempfile.TemporaryDirectory() as name:
        task = Task(grid, Store(name, define(grid)), OBJECTIVES)
        pool, progress = SimulatedPool(count, _POINT_S), Progress(points, OBJECTIVES)
        cpu_s, began, messages = time.process_time(), pool.clock.now(), 0
        for part in pool.run(task, [Span(0, points)], points, lambda _: None):
            progress.add(part)
            messages += 1
            if not messages % 1000:
                progress.front()  # as a display does
        cpu_s, elapsed_s = time.process_time() - cpu_s, pool.clock.now() - began
    idle = 1.0 - points * _POINT_S / (count * elapsed_s)
    yield Check(f"{count:,} actors: driver a message", 1e6 * cpu_s / messages, "us", rows=messages)
    yield Check(
        f"{count:,} actors: the driver is busy", 100 * cpu_s / elapsed_s, "%", rows=messages
    )
    yield Check(f"{count:,} actors: they wait", 100 * idle, "%", rows=messages)


def ray_message(messages: int = 4_000) -> list[Check]:
    """Return Ray's CPU time in the driver per message and answer."""
    import ray

    class Idle:
        def answer(self, batch: Batch) -> int:
            return len(batch)

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        actor = ray.remote(Idle).options(num_cpus=0).remote()
        ray.get(actor.answer.remote(Span(0, 1)))
        cpu_s, waiting = time.process_time(), deque[Any]()
        for i in range(messages):
            waiting.append(actor.answer.remote(Span(i, i + 1)))
            if len(waiting) > 2:
                ray.wait([waiting[0]], timeout=1.0)
                ray.get(waiting.popleft())
        cpu_s = time.process_time() - cpu_s
    finally:
        ray.shutdown()
    return [Check("Ray: driver a message", 1e6 * cpu_s / messages, "us", rows=messages)]


if __name__ == "__main__":
    main()
