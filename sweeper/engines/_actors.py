"""Workers that are Ray actors: an `Office` of a `Team`, on this machine or on a cluster's.

An actor is refused unless it is made of what this process is and writes where this process reads.
It is never restarted: with restarts on, a dying actor also fails the work behind that which killed
it, and innocents are blamed. Two pieces of work at a time, one of which waits, hide the round trip.
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
from simulators.core.modules import TRUST, trusted
from sweeper.engines._cluster import joined
from sweeper.engines.crew import Lost, Refused, Team
from sweeper.engines.identity import Card, card_of, check_facts, difference
from sweeper.engines.task import Task
from sweeper.query import pareto_kernel
from sweeper.space.spans import Batch
from sweeper.store.presence import appears, leave, remove
from sweeper.store.store import Part

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)
"""How Ray reports that a worker, or the machine it ran on, is gone."""
_UNFIT = (
    ray.exceptions.RayActorError,
    ray.exceptions.RayTaskError,
    ray.exceptions.RuntimeEnvSetupError,
)
"""How it reports that one never came to be."""


class _Remote:
    """What runs in the worker process."""

    def __init__(self) -> None:
        self.task: Task | None = None

    def introduce(
        self, folder: str, trust: str, simulator: str, results: str, token: str
    ) -> tuple[str, Any]:
        """Return who this is and its card, or why it cannot be of use; leave a token.

        What the driver trusts is trusted here: a worker asks no file of its own.
        """
        os.environ[TRUST] = trust
        who = f"{platform.node()} (pid {os.getpid()})"
        try:
            os.chdir(folder)
            card = card_of(simulator)
            leave(results, token)
        except OSError as error:
            return who, f"{folder}: {error.strerror}"
        except UserError as error:
            return who, str(error)
        return who, dict(card)

    def take(self, task: Task) -> str:
        """Make ready for a task; return what is wrong with the files it reads here, if anything."""
        self.task = task
        try:
            check_facts(task)
        except UserError as error:
            return str(error)
        task.warm_up()
        pareto_kernel.warm_up()
        task.limits.hold_memory()
        return ""

    def answer(self, batch: Batch) -> list[Part] | UserError:
        """Answer a batch."""
        assert self.task
        try:
            return list(self.task.answer_in_parts(batch))
        except UserError as error:  # travels back as a value: Ray would wrap it in its own
            return error
        except MemoryError:  # beyond its limit where no point can be told from another
            os._exit(1)


class Actor:
    """The driver's end of one actor."""

    depth = 2

    def __init__(self, name: str) -> None:
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        self.name = name
        self.handle = ray.remote(_Remote).options(**options).remote()
        self.given: deque[Any] = deque()
        self.task: Task | None = None
        self.token = ""
        self.steps: deque[Any] = deque()  # what it has still to do to be ready, in order

    def introduce(self, task: Task) -> None:
        """Ask who it is, unless that is known, and let it take the task."""
        task.warm_up()
        pareto_kernel.warm_up()  # compiled here once, the loops come from the cache everywhere else
        if self.task is not None and self.task.store.results == task.store.results:
            self.steps = deque([self.handle.take.remote(task)])
        else:
            self.token = f".token-{secrets.token_hex(8)}"
            simulator, results = task.space.simulator, task.store.results
            here, trust = str(Path.cwd()), os.pathsep.join(map(str, trusted()))
            asked = self.handle.introduce.remote(here, trust, simulator, results, self.token)
            self.steps = deque([asked])
        self.task = task

    def ready(self) -> bool:
        """Return whether it has taken the task."""
        assert self.task
        while self.steps and ray.wait([self.steps[0]], timeout=0)[0]:
            try:
                news = ray.get(self.steps.popleft())
            except _UNFIT as error:
                raise Refused(f"{self.name}: {_reason(error)}") from error
            if isinstance(news, tuple):
                self._check(*news)
                self.steps.append(self.handle.take.remote(self.task))
            elif news:
                raise Refused(f"{self.name}: {news}")
        return not self.steps

    def _check(self, who: str, card: Card | str) -> None:
        """Raise `Refused` unless the actor is made of what this process is, and writes here."""
        assert self.task
        self.name = f"{self.name} on {who}"
        if isinstance(card, str):
            raise Refused(f"{self.name}: {card}")
        if other := difference(card, card_of(self.task.space.simulator)):
            raise Refused(f"{self.name}: {other}; install the same there")
        results = self.task.store.results
        if not appears(results, self.token):
            raise Refused(
                f"{self.name}: what it writes into {results} does not arrive here; share that "
                "folder between the machines, or set outputs= to one that is"
            )
        remove(results, self.token)

    def give(self, batch: Batch) -> None:
        """Queue a batch."""
        self.given.append(self.handle.answer.remote(batch))

    def answer(self) -> list[Part] | UserError | None:
        """Return the oldest answer, if it is there."""
        if not ray.wait([self.given[0]], timeout=0)[0]:
            return None
        try:
            found: list[Part] | UserError = ray.get(self.given.popleft())
        except _LOST as error:
            raise Lost(type(error).__name__) from error
        except ray.exceptions.RayTaskError as error:  # a defect of ours: show it as it is
            raise error.cause if isinstance(error.cause, Exception) else error from error
        return found

    def awaited(self) -> list[Any]:
        """Return what it is to answer next."""
        return [queue[0] for queue in (self.steps, self.given) if queue]

    def placed(self) -> bool:
        """Return whether a machine has a CPU for it."""
        known = state.actors(self.handle._actor_id.hex())  # nothing, until Ray has registered it
        return bool(known and known["Address"]["IPAddress"])

    def dismiss(self) -> None:
        """Kill it."""
        ray.kill(self.handle)
        if self.task is not None and self.token:
            remove(self.task.store.results, self.token)


@dataclass
class Cluster:
    """Where actors come from."""

    patience_s: float
    actors: int = 0  # as many as were asked for; 0 is one a CPU, also of machines that join
    what: str = "ray"

    def recruit(self, name: str) -> Actor:
        """Ask Ray for an actor; it starts once a CPU is free."""
        return Actor(name.replace("worker", "actor"))

    def wait(self, workers: Sequence[Actor], seconds: float) -> list[Actor]:
        """Return those that have an answer, or are gone."""
        asked = {reference: w for w in workers for reference in w.awaited()}
        if not asked or not ray.wait(list(asked), num_returns=1, timeout=seconds)[0]:
            return []
        told, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return [asked[reference] for reference in told]

    def places(self) -> int:
        """Return how many actors there may be now."""
        return self.actors or int(ray.cluster_resources().get("CPU", 0))

    def obstacle(self, workers: Sequence[Actor]) -> str:
        """Return whether CPUs are held by others.

        Raises:
            UserError: no machine is left.
        """
        alive = [node for node in ray.nodes() if node["Alive"]]
        if not any(node["Resources"].get("CPU") for node in alive):
            raise UserError(
                "engine ray: no machine of the cluster is left; what was written is kept, and the "
                "same command goes on"
            )
        unplaced = sum(not worker.placed() for worker in workers)
        free = int(ray.available_resources().get("CPU", 0))
        if unplaced > free and _others():
            return f"waiting for {unplaced - free} CPUs held by others"
        return f"waiting for {len(workers)} actors to start" if workers else ""


def _others() -> bool:
    """Return whether other programs use the cluster."""
    mine = ray.get_runtime_context().get_job_id()
    return any(
        not job["IsDead"] and job["JobID"] != mine and "_ray_internal" not in str(job)
        for job in state.jobs()
    )


@contextmanager
def hired(address: str, actors: int, patience_s: float) -> Iterator[Team]:
    """Lead actors, and let everybody go at the end; stop Ray if it was started for them."""
    with joined(address, actors):
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        if actors > cores:  # one of them would never be scheduled, and waited for
            raise UserError(f"engine.actors={actors}: the cluster has only {cores} CPUs")
        team = Team(Cluster(patience_s, actors), wanted=actors or cores)
        try:
            yield team
        finally:
            team.dismiss()


def _reason(error: Exception) -> str:
    """Return the last line of a remote error that says what it was."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "Error: " in line and "ray::" not in line]
    return (telling or lines or [type(error).__name__])[-1][:300]
