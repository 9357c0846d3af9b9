"""A pool of worker processes that can be killed and replaced.

A worker receives ranges of point numbers, writes their rows itself and returns counts. A batch
whose worker died, or was silent for much longer than such batches take, is split by four until the
faulty point is alone. A single point may take its full time limit; so may a first batch, whose
expected time is unknown. Workers are never restarted, only replaced.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulators.core.errors import UserError
from sweeper.engines import Say
from sweeper.engines.chunks import Chunks, learn
from sweeper.engines.task import Task
from sweeper.space.points import Batch, split
from sweeper.store.parquet import appears
from sweeper.store.store import Part

_POLL_S = 0.25
_SLACK, _LEAST_SLACK = 10.0, 3.0
"""A batch may take this many times its expected time before it is split; the lower factor applies
where the time limit of a point is less than that."""
_SHORTEST_S, _SHORTEST = 60.0, 0.1
"""But at least 60 s or the time limit of a point if that is less, and a tenth of that limit: points
of a sweep differ, and a batch that is split too early is evaluated twice."""
_OTHERS_S = 5.0
"""How long the first ready worker waits for the others before work begins."""
_GROW_S = 5.0
"""Interval between checks whether more workers can be spawned."""
_OBSTACLE_S = 8.0
"""Wait for the first worker after which the obstacle is reported."""


class LostWorker(Exception):  # noqa: N818 - an outcome, like StopIteration, not an error
    """A worker is gone; the message says how it ended."""


class UnfitWorker(Exception):  # noqa: N818 - likewise
    """A worker cannot do this work; the message says which worker and why."""


class Worker(Protocol):
    """One process that answers batches in the order of submission."""

    name: str
    depth: int  # batches that may be submitted at a time

    def load(self, task: Task) -> None:
        """Start to load what a task needs."""

    def ready(self) -> bool:
        """Return whether the task is loaded; raise `LostWorker` or `UnfitWorker` if never."""

    def submit(self, batch: Batch) -> None:
        """Queue a batch."""

    def poll(self) -> list[Part] | UserError | None:
        """Return the oldest answer, None if there is none yet; raise `LostWorker` if never."""

    def shut_down(self) -> None:
        """Kill the worker if it is alive."""


class WorkerFactory(Protocol):
    """Spawns workers."""

    engine: str  # name of the engine
    ready_s: float  # time within which a worker must be ready

    def spawn(self, name: str) -> Worker:
        """Return a new worker, which need not be ready."""

    def wait(self, workers: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return the workers that have news, after at most so many seconds."""

    def capacity(self) -> int:
        """Return how many workers there may be now; a cluster can grow during a sweep."""

    def obstacle(self, workers: Sequence[Any]) -> str:
        """Return what keeps workers from starting, as far as is known.

        Raises:
            UserError: no worker will ever start.
        """


@dataclass(frozen=True)
class _Job:
    batch: Batch
    suspect: bool = False
    tries: int = 0


@dataclass
class Slot:
    """A worker and its submitted jobs, oldest first."""

    worker: Any
    ready: bool = False
    jobs: deque[_Job] = field(default_factory=deque)
    since: float = field(default_factory=time.monotonic)

    @property
    def free(self) -> int:
        """How many more jobs may be submitted; a suspect job runs alone."""
        if not self.ready or any(job.suspect for job in self.jobs):
            return 0
        return int(self.worker.depth) - len(self.jobs)


@dataclass
class WorkerPool:
    """The workers of one sweep."""

    factory: WorkerFactory
    wanted: int
    slots: list[Slot] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)
    task: Task | None = None
    grown_at: float = field(default_factory=time.monotonic)
    polled_at: float = 0.0  # when all slots were polled
    reports: list[str] = field(default_factory=list)  # why workers were dropped
    unfit: list[Any] = field(default_factory=list)  # kept alive: their CPUs would yield others
    point_s: float = 0.0  # seconds per point in the round before; 0 if unknown

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        """Keep every worker busy until the batches end."""
        self._start(task, say)
        workers, point_s = max(len(self.slots), 1), self.point_s or point_s
        chunks = Chunks(batches, total, workers, point_s=point_s, together=task.together)
        again: deque[_Job] = deque()
        some = self.slots
        while self._submit(chunks, again, self.slots if again else some):
            some = self._slots_with_news(say)
            self._grow(chunks, say)
            for slot in list(some):
                yield from self._receive(task, slot, chunks, again, say)
            self._check_alive()
        self.point_s = chunks.point_s if chunks.is_known else 0.0

    def shut_down(self) -> None:
        """Kill all workers."""
        for worker in [*(s.worker for s in self.slots), *self.unfit]:
            worker.shut_down()
        self.slots.clear()
        self.unfit.clear()

    def _start(self, task: Task, say: Say) -> None:
        """Spawn workers and load the task; return when all are ready, or some have waited."""
        if task is not self.task:
            self.task, self.point_s = task, 0.0
            for slot in self.slots:
                slot.ready, slot.since = False, time.monotonic()
                slot.worker.load(task)
        known, started = {id(s) for s in self.slots}, time.monotonic()
        while len(self.slots) < self.wanted:
            self._spawn()
        report_at, first_at = started + _OBSTACLE_S, 0.0
        while not all(s.ready for s in self.slots):
            self._wait(say)
            self._check_alive()
            now = time.monotonic()
            if any(s.ready for s in self.slots):
                first_at = first_at or now
                if now - first_at >= _OTHERS_S:
                    self._report_obstacle(say)
                    break
            elif now > report_at:
                self._report_obstacle(say)
                report_at = float("inf")
        if new := [s.worker.name for s in self.slots if s.ready and id(s) not in known]:
            plural = "worker" if len(new) == 1 else "workers"
            seconds, names = time.monotonic() - started, ", ".join(new)
            say(f"engine {self.factory.engine}: {len(new)} {plural} in {seconds:.1f} s: {names}")

    def _report_obstacle(self, say: Say) -> None:
        waiting = [s.worker for s in self.slots if not s.ready]
        say(f"engine {self.factory.engine}: {self.factory.obstacle(waiting)}")

    def _wait(self, say: Say) -> Sequence[Any]:
        """Return the workers with news, once those that start were looked after."""
        busy = [s.worker for s in self.slots if s.jobs or not s.ready]
        news = self.factory.wait(busy, _POLL_S)
        for slot in [s for s in self.slots if not s.ready]:
            self._admit(slot, say)
        return news

    def _slots_with_news(self, say: Say) -> list[Slot]:
        """Return the slots with news; every quarter second all, to notice workers that hang."""
        news = {id(worker) for worker in self._wait(say)}
        if time.monotonic() - self.polled_at < _POLL_S:
            return [slot for slot in self.slots if id(slot.worker) in news]
        self.polled_at = time.monotonic()
        return self.slots

    def _grow(self, chunks: Chunks, say: Say) -> None:
        """Spawn workers if the capacity has grown."""
        if time.monotonic() - self.grown_at < _GROW_S:
            return
        self.grown_at = time.monotonic()
        more = self.factory.capacity() - self.wanted
        if more > 0:
            say(f"engine {self.factory.engine}: places for {more} more")
            self.wanted += more
            for _ in range(more):
                self._spawn()
            chunks.workers = len(self.slots)

    def _spawn(self) -> None:
        assert self.task
        worker = self.factory.spawn(f"worker-{next(self.names)}")
        worker.load(self.task)
        self.slots.append(Slot(worker))

    def _admit(self, slot: Slot, say: Say) -> None:
        """Mark a worker as ready, or drop it if it is unfit, lost or late."""
        waited = time.monotonic() - slot.since
        try:
            if slot.worker.ready():
                slot.ready, slot.since = True, time.monotonic()
            elif waited > self.factory.ready_s:
                why = self.factory.obstacle([slot.worker]) or "it did not begin"
                raise LostWorker(f"not ready after {waited:.0f} s: {why}")
        except UnfitWorker as why:
            self._drop(slot, f"refused {why}", say, unfit=True)
            if len(self.unfit) + len(self.slots) < 2 * self.wanted:
                self._spawn()
        except LostWorker as why:
            self._drop(slot, f"{slot.worker.name} is given up: {why}", say)

    def _drop(self, slot: Slot, why: str, say: Say, *, unfit: bool = False) -> None:
        self.slots.remove(slot)
        if unfit:
            self.unfit.append(slot.worker)
        else:
            slot.worker.shut_down()
        if why not in self.reports:
            self.reports.append(why)
            say(f"engine {self.factory.engine}: {why}")

    def _check_alive(self) -> None:
        """Raise `UserError` if no worker is left."""
        if not self.slots:
            reasons = "\n".join(f"  {why}" for why in self.reports[-6:])
            raise UserError(
                f"engine {self.factory.engine}: no worker is left; written results are kept, and "
                f"the same command continues\n{reasons}"
            )

    def _submit(self, chunks: Chunks, again: deque[_Job], some: Sequence[Slot]) -> bool:
        """Submit jobs to free slots; return whether any job is running or left."""
        # Round by round, so that the first chunks do not all queue at the first worker.
        for _ in range(2):
            for slot in some:
                if slot.free <= 0 or (again and again[0].suspect and slot.jobs):
                    continue
                job = again.popleft() if again else None
                if job is None and (batch := next(chunks, None)) is not None:
                    job = _Job(batch)
                if job is None:
                    return any(s.jobs for s in self.slots)
                if not slot.jobs:
                    slot.since = time.monotonic()
                slot.jobs.append(job)
                slot.worker.submit(job.batch)
        return True

    def _receive(
        self, task: Task, slot: Slot, chunks: Chunks, again: deque[_Job], say: Say
    ) -> Iterator[Part]:
        """Yield the answers of a worker; replace it if it is lost or hangs."""
        folder = task.store.results
        while slot.jobs:
            try:
                answer = slot.worker.poll()
            except LostWorker as how:
                yield from self._replace(task, slot, again, "crash", str(how))
                return
            if answer is None:
                if self._hangs(task, slot, chunks):
                    yield from self._replace(task, slot, again, "timeout", "no answer in time")
                return
            job = slot.jobs.popleft()
            slot.since = time.monotonic()
            if isinstance(answer, UserError):
                raise answer
            if unseen := next((p for p in answer if not appears(folder, p.name)), None):
                again.extendleft(reversed([job, *slot.jobs]))
                why = f"its part {unseen.name} is not in {folder}, where this process reads"
                self._drop(slot, f"{slot.worker.name} is dropped: {why}", say, unfit=True)
                return
            learn(chunks, answer)
            yield from answer

    def _hangs(self, task: Task, slot: Slot, chunks: Chunks) -> bool:
        """Return whether the oldest job of a slot takes longer than it may."""
        points, limit_s = len(slot.jobs[0].batch), task.limits.timeout_s
        spent = time.monotonic() - slot.since
        if points <= 1 or not chunks.is_known:
            return spent > max(limit_s, min(points * limit_s, _SHORTEST_S))
        if spent <= max(min(_SHORTEST_S, limit_s), _SHORTEST * limit_s):
            return False
        overload = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        expected = overload * (points * chunks.point_s + chunks.part_s)
        return spent > min(_SLACK * expected, max(limit_s, _LEAST_SLACK * expected))

    def _replace(
        self, task: Task, slot: Slot, again: deque[_Job], status: str, reason: str
    ) -> Iterator[Part]:
        """Spawn another worker; requeue waiting jobs, split or abandon the running job."""
        slot.worker.shut_down()
        self.slots.remove(slot)
        self._spawn()
        culprit, *innocent = slot.jobs
        again.extendleft(reversed(innocent))
        yield from task.written(culprit.batch)
        left = list(task.store.missing(task.space, [culprit.batch]))
        if not left:
            return
        if len(left) > 1 or len(left[0]) > 1:
            pieces = [piece for batch in left for piece in split(batch, 4)]
            again.extendleft(_Job(piece, suspect=True) for piece in reversed(pieces))
        elif culprit.tries == 0 and status == "crash":
            again.appendleft(_Job(left[0], suspect=True, tries=1))
        else:
            yield task.give_up(left[0], status, f"{status}: {reason}")
