"""A pool of worker processes that can be killed and replaced.

A worker receives ranges of point numbers, writes their rows itself and returns counts. A batch
whose worker died, or was silent for much longer than such batches take, is split by four until the
faulty point is alone. A single point may take its full time limit; so may a first batch, whose
expected time is unknown. Workers are never restarted, only replaced.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from simulators.core.errors import UserError
from sweeper.engines import Say
from sweeper.engines.chunks import Chunks
from sweeper.engines.task import Task
from sweeper.space.points import Batch, split
from sweeper.store.store import Part

ONE_THREAD = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1"
)
"""Environment of one worker of several, so that libraries do not start a thread per core."""
_POLL_S = 0.25  # interval between checks of all workers for batches that take too long
_SLACK, _LEAST_SLACK = 10.0, 3.0
"""A batch may take this many times its expected time before it is split; the lower factor applies
where the time limit of a point is less than that."""
_SHORTEST_S, _SHORTEST = 60.0, 0.1
"""But at least 60 s or the time limit of a point if that is less, and a tenth of that limit: points
of a sweep differ, and a batch that is split too early is evaluated twice."""
_OTHERS_S = 5.0  # time for which the first ready worker waits for the others before work begins
_GROW_S = 5.0  # interval between checks whether more workers can be spawned
_OBSTACLE_S = 8.0  # wait for the first worker after which the obstacle is reported


class LostWorker(Exception):  # noqa: N818 - an outcome, like StopIteration, not an error
    """A worker is gone; the message says how it ended."""


class UnfitWorker(Exception):  # noqa: N818 - likewise
    """A worker cannot do this work; the message says which worker and why."""


class BatchJob(NamedTuple):
    """A batch, and whether it is tried again after a crash."""

    batch: Batch
    is_retry: bool = False


class Worker(ABC):
    """Base class of a process that answers a batch at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready = False
        self.job: BatchJob | None = None
        self.since = time.monotonic()  # start of the job, or of loading

    @abstractmethod
    def load(self, task: Task) -> None:
        """Start to load what a task needs."""

    @abstractmethod
    def is_loaded(self) -> bool:
        """Return whether the task is loaded; raise `LostWorker` or `UnfitWorker` if never."""

    @abstractmethod
    def submit(self, batch: Batch) -> None:
        """Start a batch."""

    @abstractmethod
    def poll(self) -> list[Part] | UserError | None:
        """Return the answer, None if there is none yet; raise `LostWorker` if never."""

    @abstractmethod
    def shut_down(self) -> None:
        """Kill the worker if it is alive."""


class WorkerPool(ABC):
    """The workers of one sweep."""

    engine: str  # name of the engine, for messages
    ready_s: float  # time within which a worker must be ready

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.workers: list[Any] = []
        self._numbers = itertools.count()
        self._task: Task | None = None
        self._say: Say = lambda _: None
        self._grown_at, self._polled_at = time.monotonic(), 0.0
        self._reports: list[str] = []  # why workers were dropped
        self._unfit: list[Worker] = []  # kept alive: their CPUs would yield other unfit workers
        self._point_s = 0.0  # seconds per point in the round before; 0 if unknown

    @abstractmethod
    def spawn(self, name: str) -> Worker:
        """Return a new worker, which need not be ready."""

    @abstractmethod
    def wait(self, workers: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return the workers with an answer, after at most `seconds`."""

    @abstractmethod
    def obstacle(self, workers: Sequence[Any]) -> str:
        """Return the reason why workers are not ready, as far as it is known.

        Raises:
            UserError: no worker will ever start.
        """

    def capacity(self) -> int:
        """Return the possible number of workers now; a cluster can grow during a sweep.

        Raises:
            UserError: the cluster is lost.
        """
        return self.wanted

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        """Yield the parts of all batches; keep every worker busy until the batches end."""
        self._say = lambda line: say(f"engine {self.engine}: {line}")
        self._start(task)
        chunks = Chunks(
            batches,
            total,
            workers=max(len(self.workers), 1),
            point_s=self._point_s or point_s,
            together=task.together,
        )
        again: deque[BatchJob] = deque()
        news = self.workers
        while self._submit(chunks, again, self.workers if again else news):
            news = self._workers_with_news()
            chunks.workers = max(len(self.workers), 1)
            for worker in [w for w in news if w.job]:
                yield from self._receive(task, worker, chunks, again)
            self._check_alive()
        self._point_s = chunks.point_s if chunks.is_known else 0.0

    def shut_down(self) -> None:
        """Kill all workers."""
        for worker in [*self.workers, *self._unfit]:
            worker.shut_down()
        self.workers.clear()
        self._unfit.clear()

    def _start(self, task: Task) -> None:
        """Spawn workers and load the task; return when all are ready, or some have waited."""
        if task is not self._task:
            self._task, self._point_s = task, 0.0
            for worker in self.workers:
                worker.is_ready, worker.since = False, time.monotonic()
                worker.load(task)
        known, started = {id(w) for w in self.workers}, time.monotonic()
        while len(self.workers) < self.wanted:
            self._spawn()
        report_at, begin_at = started + _OBSTACLE_S, math.inf
        while not all(w.is_ready for w in self.workers):
            self._wait()
            self._check_alive()
            now, waiting = time.monotonic(), [w for w in self.workers if not w.is_ready]
            if len(waiting) < len(self.workers):
                begin_at = min(begin_at, now + _OTHERS_S)
            if waiting and now >= min(report_at, begin_at):
                self._say(self.obstacle(waiting))
                report_at = math.inf
                if now >= begin_at:
                    break
        if new := [w.name for w in self.workers if w.is_ready and id(w) not in known]:
            plural = "worker" if len(new) == 1 else "workers"
            seconds = time.monotonic() - started
            self._say(f"{len(new)} {plural} in {seconds:.1f} s: {', '.join(new)}")

    def _wait(self) -> Sequence[Worker]:
        """Return the workers with news; admit or drop those that were not ready."""
        self._grow()
        news = self.wait([w for w in self.workers if w.job or not w.is_ready], _POLL_S)
        for worker in [w for w in self.workers if not w.is_ready]:
            self._admit(worker)
        return news

    def _workers_with_news(self) -> list[Any]:
        """Return the workers with news; every quarter second all, to notice workers that hang."""
        news = {id(worker) for worker in self._wait()}
        if time.monotonic() - self._polled_at < _POLL_S:
            return [worker for worker in self.workers if id(worker) in news]
        self._polled_at = time.monotonic()
        return self.workers

    def _grow(self) -> None:
        if time.monotonic() - self._grown_at < _GROW_S:
            return
        self._grown_at = time.monotonic()
        if (more := self.capacity() - self.wanted) > 0:
            self._say(f"places for {more} more")
            self.wanted += more
            for _ in range(more):
                self._spawn()

    def _spawn(self) -> None:
        assert self._task
        worker = self.spawn(f"worker-{next(self._numbers)}")
        worker.is_ready, worker.job, worker.since = False, None, time.monotonic()
        worker.load(self._task)
        self.workers.append(worker)

    def _admit(self, worker: Worker) -> None:
        """Mark a worker as ready, or drop it if it is unfit, lost or late."""
        waited = time.monotonic() - worker.since
        try:
            if worker.is_loaded():
                worker.is_ready = True
            elif waited > self.ready_s:
                why = self.obstacle([worker]) or "it did not begin"
                raise LostWorker(f"not ready after {waited:.0f} s: {why}")
        except UnfitWorker as why:
            self.workers.remove(worker)
            self._unfit.append(worker)
            self._report(f"refused {why}")
            if len(self._unfit) + len(self.workers) < 2 * self.wanted:
                self._spawn()
        except LostWorker as why:
            self.workers.remove(worker)
            worker.shut_down()
            self._report(f"{worker.name} is given up: {why}")

    def _report(self, why: str) -> None:
        """Report once why a worker was dropped."""
        if why not in self._reports:
            self._reports.append(why)
            self._say(why)

    def _check_alive(self) -> None:
        if not self.workers:
            reasons = "\n".join(f"  {why}" for why in self._reports[-6:])
            raise UserError(
                f"engine {self.engine}: no worker is left; written results are kept, and "
                f"the same command continues\n{reasons}"
            )

    def _submit(self, chunks: Chunks, again: deque[BatchJob], workers: Sequence[Worker]) -> bool:
        """Submit jobs to free workers; return whether any job is running or left."""
        for worker in workers:
            if not worker.is_ready or worker.job:
                continue
            if again:
                worker.job = again.popleft()
            elif (batch := next(chunks, None)) is not None:
                worker.job = BatchJob(batch)
            else:
                return any(w.job for w in self.workers)
            worker.since = time.monotonic()
            worker.submit(worker.job.batch)
        return True

    def _receive(
        self, task: Task, worker: Worker, chunks: Chunks, again: deque[BatchJob]
    ) -> Iterator[Part]:
        """Yield the answer of a worker; replace the worker if it is lost or hangs."""
        try:
            answer = worker.poll()
        except LostWorker as how:
            yield from self._replace(task, worker, again, "crash", str(how))
            return
        if isinstance(answer, UserError):
            raise answer
        if answer is not None:
            worker.job = None
            chunks.learn_from(answer)
            yield from answer
        elif self._hangs(task, worker, chunks):
            yield from self._replace(task, worker, again, "timeout", "no answer in time")

    def _hangs(self, task: Task, worker: Worker, chunks: Chunks) -> bool:
        """Return whether the job of a worker takes longer than it may."""
        assert worker.job
        points, limit_s = len(worker.job.batch), task.limits.timeout_s
        spent = time.monotonic() - worker.since
        if points <= 1 or not chunks.is_known:
            return spent > max(limit_s, min(points * limit_s, _SHORTEST_S))
        if spent <= max(min(_SHORTEST_S, limit_s), _SHORTEST * limit_s):
            return False
        overload = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        expected = overload * (points * chunks.point_s + chunks.part_s)
        return spent > min(_SLACK * expected, max(limit_s, _LEAST_SLACK * expected))

    def _replace(
        self, task: Task, worker: Worker, again: deque[BatchJob], status: str, reason: str
    ) -> Iterator[Part]:
        """Spawn another worker; split the job, or give up its only point."""
        assert worker.job
        batch, is_retry = worker.job
        worker.shut_down()
        self.workers.remove(worker)
        self._spawn()
        task.discard(batch)
        if len(batch) > 1:
            again.extendleft(BatchJob(piece) for piece in reversed(split(batch, 4)))
        elif status == "crash" and not is_retry:
            again.appendleft(BatchJob(batch, is_retry=True))
        else:
            yield task.give_up(batch, status, f"{status}: {reason}")
