"""Workers that are Ray actors, on this machine or on a cluster's.

An actor is refused unless it runs the same code and writes where the driver reads. Actors are never
restarted: with restarts on, a dying actor also fails the batches queued behind the faulty one.
Two batches per actor at a time hide the round trip.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import state

from simulators.core.errors import UserError
from simulators.core.folder import TRUST, trusted
from sweeper.engines._ray_cluster import joined
from sweeper.engines.fingerprint import EnvironmentFingerprint, check_facts, difference, fingerprint
from sweeper.engines.pool import LostWorker, UnfitWorker, WorkerPool
from sweeper.engines.task import Task
from sweeper.space.points import Batch
from sweeper.store.parquet import appears, remove, write_token
from sweeper.store.store import Part

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)
"""How Ray reports that a worker, or its machine, is gone."""
_NOT_STARTED = (
    ray.exceptions.RayActorError,
    ray.exceptions.RayTaskError,
    ray.exceptions.RuntimeEnvSetupError,
)
"""How Ray reports that a worker could not start."""


class _Remote:
    """The actor's end."""

    def __init__(self) -> None:
        self.task: Task | None = None

    def identify(
        self, folder: str, trust: str, simulator: str, results: str, token: str
    ) -> tuple[str, dict[str, str] | str]:
        """Return the actor's name and fingerprint, or why it is unfit; write a token.

        The driver's trusted folders are trusted here.
        """
        os.environ[TRUST] = trust
        name = f"{platform.node()} (pid {os.getpid()})"
        try:
            os.chdir(folder)
            found = dict(fingerprint(simulator))
            write_token(results, token)
        except OSError as error:
            return name, f"{folder}: {error.strerror}"
        except UserError as error:
            return name, str(error)
        return name, found

    def load(self, task: Task) -> str:
        """Load a task; return the problem with files read on this node, or nothing."""
        self.task = task
        try:
            check_facts(task)
        except UserError as error:
            return str(error)
        task.warm_up()
        task.limits.hold_memory()
        return ""

    def answer(self, batch: Batch) -> list[Part] | UserError:
        """Evaluate a batch."""
        assert self.task
        try:
            return list(self.task.answer_in_parts(batch))
        except UserError as error:  # returned as a value: Ray would wrap it in its own
            return error
        except MemoryError:  # over its limit, at no identifiable point
            os._exit(1)


class Actor:
    """The driver's end of an actor: a `Worker`."""

    depth = 2

    def __init__(self, name: str) -> None:
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self.name = name
        self.handle = ray.remote(_Remote).options(**options).remote()
        self.submitted: deque[Any] = deque()
        self.task: Task | None = None
        self.token = ""
        self.steps: deque[Any] = deque()  # pending calls until the task is loaded

    def load(self, task: Task) -> None:
        """Start to identify the actor, unless that is done, and to load the task."""
        task.warm_up()
        if self.task is not None and self.task.store.results == task.store.results:
            self.steps = deque([self.handle.load.remote(task)])
        else:
            self.token = f".token-{secrets.token_hex(8)}"
            simulator, results = task.space.simulator, task.store.results
            here, trust = str(Path.cwd()), os.pathsep.join(map(str, trusted()))
            asked = self.handle.identify.remote(here, trust, simulator, results, self.token)
            self.steps = deque([asked])
        self.task = task

    def ready(self) -> bool:
        """Return whether the task is loaded."""
        assert self.task
        while self.steps and ray.wait([self.steps[0]], timeout=0)[0]:
            try:
                answer = ray.get(self.steps.popleft())
            except _NOT_STARTED as error:
                raise UnfitWorker(f"{self.name}: {_reason(error)}") from error
            if isinstance(answer, tuple):
                self._check(*answer)
                self.steps.append(self.handle.load.remote(self.task))
            elif answer:
                raise UnfitWorker(f"{self.name}: {answer}")
        return not self.steps

    def _check(self, name: str, theirs: EnvironmentFingerprint | str) -> None:
        """Raise `UnfitWorker` unless the actor runs the same code and writes where we read."""
        assert self.task
        self.name = f"{self.name} on {name}"
        if isinstance(theirs, str):
            raise UnfitWorker(f"{self.name}: {theirs}")
        if other := difference(theirs, fingerprint(self.task.space.simulator)):
            raise UnfitWorker(f"{self.name}: {other}; install the same there")
        results = self.task.store.results
        if not appears(results, self.token):
            raise UnfitWorker(
                f"{self.name}: what it writes into {results} does not arrive here; share that "
                "folder between the machines, or set outputs= to one that is"
            )
        remove(results, self.token)

    def submit(self, batch: Batch) -> None:
        """Queue a batch."""
        self.submitted.append(self.handle.answer.remote(batch))

    def poll(self) -> list[Part] | UserError | None:
        """Return the oldest answer, None if there is none yet."""
        if not ray.wait([self.submitted[0]], timeout=0)[0]:
            return None
        try:
            found: list[Part] | UserError = ray.get(self.submitted.popleft())
        except _LOST as error:
            raise LostWorker(type(error).__name__) from error
        except ray.exceptions.RayTaskError as error:  # a defect of ours: show it as it is
            raise error.cause if isinstance(error.cause, Exception) else error from error
        return found

    def pending(self) -> list[Any]:
        """Return the calls that the actor answers next."""
        return [queue[0] for queue in (self.steps, self.submitted) if queue]

    def is_placed(self) -> bool:
        """Return whether a machine has a CPU for the actor."""
        known = state.actors(self.handle._actor_id.hex())  # empty until Ray has registered it
        return bool(known and known["Address"]["IPAddress"])

    def shut_down(self) -> None:
        """Kill the actor."""
        ray.kill(self.handle)
        if self.task is not None and self.token:
            remove(self.task.store.results, self.token)


@dataclass
class ActorFactory:
    """Spawns actors: a `WorkerFactory`."""

    ready_s: float
    actors: int = 0  # as asked for; 0: one per CPU, also of machines that join
    engine: str = "ray"

    def spawn(self, name: str) -> Actor:
        """Return a new actor, which starts once a CPU is free."""
        return Actor(name.replace("worker", "actor"))

    def wait(self, workers: Sequence[Actor], seconds: float) -> list[Actor]:
        """Return the actors that have an answer or are gone."""
        asked = {reference: w for w in workers for reference in w.pending()}
        if not asked or not ray.wait(list(asked), num_returns=1, timeout=seconds)[0]:
            return []
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return [asked[reference] for reference in answered]

    def capacity(self) -> int:
        """Return how many actors there may be now."""
        return self.actors or int(ray.cluster_resources().get("CPU", 0))

    def obstacle(self, workers: Sequence[Actor]) -> str:
        """Return whether other programs hold the CPUs.

        Raises:
            UserError: no machine is left.
        """
        alive = [node for node in ray.nodes() if node["Alive"]]
        if not any(node["Resources"].get("CPU") for node in alive):
            raise UserError(
                "engine ray: no machine of the cluster is left; written results are kept, and the "
                "same command continues"
            )
        unplaced = sum(not worker.is_placed() for worker in workers)
        free = int(ray.available_resources().get("CPU", 0))
        if unplaced > free and _is_shared():
            return f"waiting for {unplaced - free} CPUs held by others"
        return f"waiting for {len(workers)} actors to start" if workers else ""


def _is_shared() -> bool:
    """Return whether other programs use the cluster."""
    mine = ray.get_runtime_context().get_job_id()
    return any(
        not job["IsDead"] and job["JobID"] != mine and "_ray_internal" not in str(job)
        for job in state.jobs()
    )


@contextmanager
def opened_pool(address: str, actors: int, ready_s: float) -> Iterator[WorkerPool]:
    """Return a pool of actors, shut down at the end with Ray if it was started for them."""
    with joined(address, actors):
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        if actors > cores:  # the others would never be scheduled
            raise UserError(f"engine.actors={actors}: the cluster has only {cores} CPUs")
        pool = WorkerPool(ActorFactory(ready_s, actors), wanted=actors or cores)
        try:
            yield pool
        finally:
            pool.shut_down()


def _reason(error: Exception) -> str:
    """Return the last line of a remote error that names it."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "Error: " in line and "ray::" not in line]
    return (telling or lines or [type(error).__name__])[-1][:300]
