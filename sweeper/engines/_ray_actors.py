"""Workers that are Ray actors, on this machine or on a cluster's.

An actor is refused unless it runs the same code on the same facts, by its fingerprint, and writes
where the driver reads. Actors are never restarted: with restarts on, a dying actor also fails the
batches queued behind the faulty one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import ray

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGES, TRUST, trusted
from sweeper.engines.pool import LostWorker, UnfitWorker, Worker, WorkerPool
from sweeper.engines.task import Task, keep_freed_memory
from sweeper.extras import DISTRIBUTION
from sweeper.space.points import Batch
from sweeper.store.keys import define
from sweeper.store.parquet import appears, remove, write_token
from sweeper.store.store import Part

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)
"""Ray's errors for a lost worker or machine."""
_MISSES = 2
"""Checks in a row at which the head does not answer, after which the cluster is lost."""
_NOT_STARTED = (
    ray.exceptions.RayActorError,
    ray.exceptions.RayTaskError,
    ray.exceptions.RuntimeEnvSetupError,
)
"""Ray's errors for a worker that could not start."""

EnvironmentFingerprint = Mapping[str, str]
"""Versions of packages that affect results, and digests of sources and facts, by name."""


def fingerprint(simulator: str) -> EnvironmentFingerprint:
    """Return the fingerprint of this process for running a simulator."""
    loaded = load_simulator(simulator)
    file = getattr(sys.modules.get(type(loaded).__module__), "__file__", None)
    versions = {p: _version(p) for p in (DISTRIBUTION, "numpy", "numba", "pyarrow", "polars")}
    return {
        "python": platform.python_version(),
        **versions,
        f"simulator {simulator}": f"version {loaded.version}",
        "digest of sources and facts": _digest_of_packages(),
        f"digest of {simulator}": _digest(sorted(Path(file).parent.glob("*.py"))) if file else "",
    }


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _digest_of_packages() -> str:
    files = (f for p in ("sweeper", "simulators") for f in sorted((PACKAGES / p).rglob("*")))
    kinds = (".py", ".toml", ".json")
    return _digest(f for f in files if f.suffix in kinds and "__pycache__" not in f.parts)


def _digest(files: Iterable[Path]) -> str:
    total = hashlib.blake2b(digest_size=6)
    for file in files:
        total.update(f"{file.name}\0".encode() + file.read_bytes())
    return total.hexdigest()


class _Remote:
    task: Task

    def identify(
        self, folder: str, trust: str, simulator: str, results: str, token: str
    ) -> tuple[str, EnvironmentFingerprint | str]:
        """Return the actor's name and its fingerprint or problem; write a token.

        The driver's trusted folders are trusted here.
        """
        os.environ[TRUST] = trust
        name = f"{platform.node()} (pid {os.getpid()})"
        try:
            os.chdir(folder)
            found = fingerprint(simulator)
            write_token(results, token)
        except OSError as error:
            return name, f"{folder}: {error.strerror}"
        except UserError as error:
            return name, str(error)
        return name, found

    def load(self, task: Task) -> str:
        """Load a task; return the problem with files read on this node, or nothing."""
        self.task = task
        stored = task.store.definition.contents
        try:
            here = define(task.space).contents
        except UserError as error:
            return str(error)
        for name in sorted({*stored, *here}):
            if stored.get(name) != here.get(name):
                return f"it reads other files for '{name or 'every point'}'"
        keep_freed_memory()
        task.warm_up()
        task.limits.hold_memory()
        return ""

    def answer(self, batch: Batch) -> list[Part] | UserError:
        """Evaluate a batch."""
        try:
            return list(self.task.answer_in_parts(batch))
        except UserError as error:  # returned as a value: Ray would wrap it in its own
            return error
        except MemoryError:  # over its limit, at no identifiable point
            os._exit(1)


class Actor(Worker):
    """The driver's end of an actor."""

    def __init__(self, name: str, has_head: Callable[[], bool]) -> None:
        super().__init__(name)
        self.has_head = has_head
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self.handle = ray.remote(_Remote).options(**options).remote()
        self.call: Any = None  # the pending call
        self.task: Task | None = None
        self.token = ""

    def load(self, task: Task) -> None:
        """Start to identify the actor, unless that is done, and to load the task."""
        task.warm_up()
        results = task.store.results
        if self.task is not None and self.task.store.results == results:
            self.call = self.handle.load.remote(task)
        else:
            self.token = f".token-{secrets.token_hex(8)}"
            here, trust = str(Path.cwd()), os.pathsep.join(map(str, trusted()))
            self.call = self.handle.identify.remote(
                here, trust, task.space.simulator, results, self.token
            )
        self.task = task

    def is_loaded(self) -> bool:
        """Return whether the task is loaded; load the task once the actor is identified."""
        try:
            answer = self._answer()
        except _NOT_STARTED as error:
            raise UnfitWorker(f"{self.name}: {_reason(error)}") from error
        if isinstance(answer, tuple):
            self._check(*answer)
            self.call = self.handle.load.remote(self.task)
        elif answer:
            raise UnfitWorker(f"{self.name}: {answer}")
        return bool(answer == "")

    def _answer(self) -> Any:
        if not ray.wait([self.call], timeout=0)[0]:
            return None
        call, self.call = self.call, None
        return ray.get(call)

    def _check(self, name: str, theirs: EnvironmentFingerprint | str) -> None:
        """Raise `UnfitWorker` unless the actor has the same code and the same results folder."""
        assert self.task
        self.name = f"{self.name} on {name}"
        if isinstance(theirs, str):
            raise UnfitWorker(f"{self.name}: {theirs}")
        ours = fingerprint(self.task.space.simulator)
        differences = ", ".join(
            f"{part} is {theirs.get(part, 'missing')} there and {value} here"
            for part, value in ours.items()
            if theirs.get(part) != value
        )
        if differences:
            raise UnfitWorker(f"{self.name}: {differences}; install the same there")
        results = self.task.store.results
        if not appears(results, self.token):
            raise UnfitWorker(
                f"{self.name}: what it writes into {results} does not arrive here; share that "
                "folder between the machines, or set outputs= to one that is"
            )
        remove(results, self.token)

    def submit(self, batch: Batch) -> None:
        """Start a batch."""
        self.call = self.handle.answer.remote(batch)

    def poll(self) -> list[Part] | UserError | None:
        """Return the answer, None if there is none yet."""
        try:
            found: list[Part] | UserError | None = self._answer()
        except _LOST as error:
            raise LostWorker(type(error).__name__) from error
        except ray.exceptions.RayTaskError as error:  # a defect of ours: show it as it is
            raise error.cause if isinstance(error.cause, Exception) else error from error
        return found

    def shut_down(self) -> None:
        """Kill the actor, unless the head is gone: then Ray's call would never return."""
        if self.has_head():
            ray.kill(self.handle)
        if self.task is not None and self.token:
            remove(self.task.store.results, self.token)


class ActorPool(WorkerPool):
    """A pool of actors; `has_head` returns whether the head of the cluster answers."""

    engine = "ray"

    def __init__(
        self, wanted: int, ready_s: float, has_head: Callable[[], bool], *, can_grow: bool
    ) -> None:
        super().__init__(wanted)
        self.ready_s, self.has_head, self.can_grow = ready_s, has_head, can_grow
        self._misses = 0  # checks in a row at which the head did not answer

    def spawn(self, name: str) -> Actor:
        """Return a new actor, which starts once a CPU is free.

        Raises:
            UserError: the head does not answer: Ray's call would never return.
        """
        if not self.has_head():
            raise _lost_cluster("the head of the cluster does not answer")
        return Actor(name.replace("worker", "actor"), self.has_head)

    def wait(self, workers: Sequence[Actor], seconds: float) -> list[Actor]:
        """Return the actors that have an answer or are gone."""
        asked = {w.call: w for w in workers if w.call is not None}
        if not asked or not ray.wait(list(asked), num_returns=1, timeout=seconds)[0]:
            return []
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return [asked[reference] for reference in answered]

    def capacity(self) -> int:
        """Return the possible number of actors: one per CPU, also of machines that join.

        Raises:
            UserError: the head does not answer, or no machine is left.
        """
        self._misses = 0 if self.has_head() else self._misses + 1
        if self._misses:  # no call of Ray would return
            if self._misses >= _MISSES:
                raise _lost_cluster("the head of the cluster does not answer")
            return self.wanted
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if not cpus:
            raise _lost_cluster("no machine of the cluster is left")
        return cpus if self.can_grow else self.wanted

    def obstacle(self, workers: Sequence[Actor]) -> str:
        """Return the number of actors that wait for a CPU.

        Raises:
            UserError: the head does not answer, or no machine is left.
        """
        self.capacity()
        if self._misses:
            return "the head does not answer"
        free, cpus = (
            int(found.get("CPU", 0))
            for found in (ray.available_resources(), ray.cluster_resources())
        )
        return f"waiting for {len(workers)} actors to start; {free} of {cpus} CPUs are free"


def _lost_cluster(why: str) -> UserError:
    return UserError(f"engine ray: {why}; written results are kept, and the same command continues")


def _reason(error: Exception) -> str:
    """Return the last line of a remote error that names the error."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "Error: " in line and "ray::" not in line]
    return (telling or lines or [type(error).__name__])[-1][:300]
