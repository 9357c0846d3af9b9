"""Workers that are Ray actors: how they are hired, given work, watched and replaced.

An actor gets ranges of point numbers, two at a time (one runs, one waits), writes its rows itself
and sends back counts. It is never restarted but replaced: with restarts on, a dying actor also
fails the chunk behind the one that killed it, and innocents are blamed. A chunk whose worker died
or hung is split by four until the culprit is alone; alone, it is tried once more, then recorded.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from simulators.core.errors import UserError
from sweeper.engines import Say
from sweeper.engines.chunks import Chunks
from sweeper.engines.task import Task
from sweeper.query import pareto_kernel
from sweeper.space.spans import Batch, split
from sweeper.store.store import Part

_IN_FLIGHT = 2
_POLL_S = 0.25
_SLACK = 10.0
"""A chunk may take this many times what was expected before its worker is called hung."""


_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)
"""How Ray reports that a worker, or the machine it ran on, is gone."""


@dataclass(frozen=True)
class _Job:
    batch: Batch
    suspect: bool = False
    tries: int = 0


@dataclass
class _Worker:
    """One actor and what it was given, oldest first."""

    name: str
    handle: Any
    ready: Any  # resolves once it has started and knows its task; its time counts from then
    jobs: deque[tuple[Any, _Job]] = field(default_factory=deque)
    since: float = field(default_factory=time.monotonic)

    @property
    def room(self) -> int:
        """How many more jobs it may be given; a suspect job is given alone."""
        if any(job.suspect for _, job in self.jobs):
            return 0
        return _IN_FLIGHT - len(self.jobs)


class _Actor:
    """What runs in the worker process."""

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        self.task: Task | None = None

    def take(self, task: Task) -> None:
        self.task = task
        task.warm_up()
        pareto_kernel.warm_up()

    def pid(self) -> int:
        """Return the worker's process id; answers once the worker is ready."""
        return os.getpid()

    def answer(self, batch: Batch) -> list[Part] | UserError:
        assert self.task
        try:
            return list(self.task.answer_in_parts(batch))
        except UserError as error:  # travels back as a value: Ray would wrap it in its own
            return error


@contextmanager
def hired(address: str, actors: int, point_timeout_s: float) -> Iterator[_Actors]:
    """Let everybody go at the end, and stop Ray if it was started for them."""
    ours = not ray.is_initialized()
    crew = _Actors(address, actors, point_timeout_s)
    try:
        yield crew
    finally:
        for worker in crew.hired:
            ray.kill(worker.handle)
        if ours and ray.is_initialized():
            ray.shutdown()


@dataclass
class _Actors:
    """The actors of one sweep."""

    address: str
    wanted: int
    point_timeout_s: float
    hired: list[_Worker] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)

    def run(self, task: Task, batches: Iterable[Batch], total: int, say: Say) -> Iterator[Part]:
        """Keep every actor busy until the batches end."""
        started, before = time.perf_counter(), len(self.hired)
        self._hire(task)
        if len(self.hired) > before:
            pids = ray.get([w.handle.pid.remote() for w in self.hired])
            names = ", ".join(f"{w.name} (pid {p})" for w, p in zip(self.hired, pids, strict=True))
            seconds = time.perf_counter() - started
            say(f"engine ray: {len(self.hired)} actors hired in {seconds:.1f} s: {names}")
        chunks = Chunks(batches, total, workers=len(self.hired))
        again: deque[_Job] = deque()
        while True:
            self._give(chunks, again)
            busy = [w for w in self.hired if w.jobs]
            if not busy:
                return
            ready, _ = ray.wait([w.jobs[0][0] for w in busy], num_returns=1, timeout=_POLL_S)
            for worker in busy:
                if worker.jobs[0][0] in ready:
                    yield from self._collect(task, worker, chunks, again)
                elif self._hung(worker, chunks):
                    ray.kill(worker.handle)
                    yield from self._replace(task, worker, again, "timeout", "no answer in time")

    def _hire(self, task: Task) -> None:
        task.warm_up()
        pareto_kernel.warm_up()  # compiled here once, the loops come from the cache everywhere else
        if not ray.is_initialized():
            _start(self.address, self.wanted)
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        wanted = self.wanted or cores
        if wanted > cores:  # one of them would never be scheduled, and waited for
            raise UserError(f"engine.actors={wanted}: the cluster has only {cores} CPUs")
        for worker in self.hired:
            worker.ready = worker.handle.take.remote(task)
        while len(self.hired) < wanted:
            self.hired.append(self._recruit(task))

    def _recruit(self, task: Task) -> _Worker:
        name = f"actor-{next(self.names)}"
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        handle = ray.remote(_Actor).options(**options).remote(str(Path.cwd()))
        return _Worker(name, handle, ready=handle.take.remote(task))

    def _give(self, chunks: Chunks, again: deque[_Job]) -> None:
        # Round by round, so that the first chunks do not all queue at the first worker.
        for _ in range(_IN_FLIGHT):
            for worker in self.hired:
                if worker.room <= 0:
                    continue
                if again and again[0].suspect and worker.jobs:
                    continue
                job = again.popleft() if again else None
                if job is None and (batch := next(chunks, None)) is not None:
                    job = _Job(batch)
                if job is None:
                    return
                if not worker.jobs:
                    worker.since = time.monotonic()
                worker.jobs.append((worker.handle.answer.remote(job.batch), job))

    def _collect(
        self, task: Task, worker: _Worker, chunks: Chunks, again: deque[_Job]
    ) -> Iterator[Part]:
        try:
            result = ray.get(worker.jobs[0][0])
        except _LOST as error:
            yield from self._replace(task, worker, again, "crash", type(error).__name__)
            return
        except ray.exceptions.RayTaskError as error:  # a defect of ours: show it as it is
            raise error.cause if isinstance(error.cause, Exception) else error from error
        worker.jobs.popleft()
        now = time.monotonic()
        worker.since = now
        if isinstance(result, UserError):
            raise result
        chunks.learn(sum(p.points for p in result), sum(p.seconds for p in result))
        yield from result

    def _hung(self, worker: _Worker, chunks: Chunks) -> bool:
        if worker.ready is not None:
            if ray.wait([worker.ready], timeout=0)[0]:
                worker.ready, worker.since = None, time.monotonic()
            return False
        points = len(worker.jobs[0][1].batch)
        allowed = self.point_timeout_s
        if points > 1:
            allowed = max(allowed, _SLACK * points * chunks.point_s)
        return time.monotonic() - worker.since > allowed

    def _replace(
        self, task: Task, worker: _Worker, again: deque[_Job], status: str, reason: str
    ) -> Iterator[Part]:
        """Hire another actor; requeue what waited, examine what ran."""
        jobs = [job for _, job in worker.jobs]
        self.hired[self.hired.index(worker)] = self._recruit(task)
        culprit, innocent = jobs[0], jobs[1:]
        again.extendleft(reversed(innocent))
        left = list(task.store.missing(task.space, [culprit.batch]))  # it may have written parts
        if not left:
            return
        if len(left) > 1 or len(left[0]) > 1:
            pieces = [piece for batch in left for piece in split(batch, 4)]
            again.extendleft(_Job(piece, suspect=True) for piece in reversed(pieces))
        elif culprit.tries == 0 and status == "crash":
            again.appendleft(_Job(left[0], suspect=True, tries=1))
        else:
            yield task.give_up(left[0], status, f"{status}: {reason}")


def _start(address: str, actors: int) -> None:
    """Start Ray quietly, with a CPU for each of `actors`, or join the cluster at `address`."""
    one = dict.fromkeys(
        ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1"
    )
    # Columns of a megabyte come and go with every chunk: let the allocator keep their pages.
    kept = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28))
    passed = {k: os.environ[k] for k in ("NUMBA_CACHE_DIR", "SWEEPER_HOME") if k in os.environ}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    options: dict[str, Any] = {
        "address": address,
        "runtime_env": {"env_vars": {**one, **kept, **passed}},
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
        options["num_cpus"] = actors or None
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"engine.address={address}: Ray did not start: {error}") from error
