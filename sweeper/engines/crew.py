"""A crew of workers that can be killed: hired, given work, watched, let go and replaced.

A worker is given ranges of point numbers, writes its rows itself and sends back counts. It gets
work once it is ready, and is never restarted but replaced. Work whose worker died, or was silent
for longer than such work takes, is split by four until the culprit is alone. Alone a point gets the
whole time that a point may take; so does a first chunk, of which nobody knows what it should take.
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
from sweeper.space.spans import Batch, split
from sweeper.store.presence import appears
from sweeper.store.store import Part

_POLL_S = 0.25
_SLACK, _LEAST_SLACK = 10.0, 3.0
"""Work of several points may take this many times what was expected before it is split; or the
lower, where that is more than a point alone may take."""
_SHORTEST_S, _SHORTEST = 60.0, 0.1
"""But never less than this, or than a point alone may take; nor than this share of that. Points of
one sweep differ by more than any slack, and to call dear ones hanging is to evaluate them twice."""
_OTHERS_S = 5.0
"""How long the first worker that is ready waits for the others before the work begins."""
_GROW_S = 5.0
"""How often it is asked whether there are places for more."""
_SAID_S = 8.0
"""After which it is said what keeps everybody waiting."""


class Lost(Exception):  # noqa: N818 - an outcome, like StopIteration, not an error
    """A worker is gone; the message is how it went."""


class Refused(Exception):  # noqa: N818 - likewise
    """A worker cannot do this work; the message says who it is and why."""


class Worker(Protocol):
    """One process that answers ranges of points in the order in which it is given them."""

    name: str
    depth: int  # how much work it may be given at a time

    def introduce(self, task: Task) -> None:
        """Ask it to make itself ready for a task."""
        ...

    def ready(self) -> bool:
        """Return whether it can be given work; raise `Lost` or `Refused` if it never will."""
        ...

    def give(self, batch: Batch) -> None:
        """Let it answer a batch when it has answered what it was given before."""
        ...

    def answer(self) -> list[Part] | UserError | None:
        """Return its oldest answer, or nothing yet; raise `Lost` if it is gone."""
        ...

    def dismiss(self) -> None:
        """Kill it, if it still lives."""
        ...


class Office(Protocol):
    """Where workers come from."""

    what: str  # the engine's name
    patience_s: float  # within which a worker must be ready

    def recruit(self, name: str) -> Worker:
        """Return a new worker, which need not be ready."""
        ...

    def wait(self, workers: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return the workers that have something to tell, after so long at most."""
        ...

    def places(self) -> int:
        """Return how many workers there may be now: a cluster grows while a sweep runs."""
        ...

    def obstacle(self, workers: Sequence[Any]) -> str:
        """Return what keeps these workers from starting, as far as can be seen.

        Raises:
            UserError: none will ever start.
        """
        ...


def crowding() -> float:
    """Return how many times longer work may take here than alone, for others on the same cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass(frozen=True)
class _Job:
    batch: Batch
    suspect: bool = False
    tries: int = 0


@dataclass
class _Post:
    """A worker and what it was given, oldest first."""

    worker: Any
    ready: bool = False
    jobs: deque[_Job] = field(default_factory=deque)
    since: float = field(default_factory=time.monotonic)

    @property
    def room(self) -> int:
        """How many more jobs it may be given; a suspect job is given alone."""
        if not self.ready or any(job.suspect for job in self.jobs):
            return 0
        return int(self.worker.depth) - len(self.jobs)


@dataclass
class Team:
    """The workers of one sweep: a `Crew`."""

    office: Office
    wanted: int
    posts: list[_Post] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)
    task: Task | None = None
    asked: float = field(default_factory=time.monotonic)  # when, last, for more places
    looked: float = 0.0  # when, last, at all of them
    gone: list[str] = field(default_factory=list)  # who was refused or given up, and why
    unfit: list[Any] = field(default_factory=list)  # kept: they fill places where all would be so
    point_s: float = 0.0  # that a point took in the round before; 0 where there was none

    def run(
        self, task: Task, batches: Iterable[Batch], total: int, say: Say, point_s: float = 0.0
    ) -> Iterator[Part]:
        """Keep every worker busy until the batches end."""
        self._gather(task, say)
        workers = max(len(self.posts), 1)
        point_s = self.point_s or point_s
        chunks = Chunks(batches, total, workers, point_s=point_s, together=task.together)
        again: deque[_Job] = deque()
        some = self.posts
        while self._give(chunks, again, self.posts if again else some):
            some = self._heard(say)
            self._grow(chunks, say)
            for post in list(some):
                yield from self._hear(task, post, chunks, again, say)
            if not self.posts:
                self._nobody_left()
        self.point_s = chunks.point_s if chunks.is_known else 0.0

    def dismiss(self) -> None:
        """Let everybody go."""
        for worker in [*(p.worker for p in self.posts), *self.unfit]:
            worker.dismiss()
        self.posts.clear()
        self.unfit.clear()

    def _gather(self, task: Task, say: Say) -> None:
        """Have workers for a task: all that are wanted, or those that are ready in time."""
        if task is not self.task:
            self.task, self.point_s = task, 0.0
            for post in self.posts:
                post.ready, post.since = False, time.monotonic()
                post.worker.introduce(task)
        known = {id(p) for p in self.posts}
        while len(self.posts) < self.wanted:
            self._recruit()
        started = time.monotonic()
        self._await_first(say)
        first = time.monotonic()
        while not all(p.ready for p in self.posts) and time.monotonic() - first < _OTHERS_S:
            self._await(say)
        if not all(p.ready for p in self.posts):
            self._say_obstacle(say)
        if new := [p.worker.name for p in self.posts if p.ready and id(p) not in known]:
            plural = "worker" if len(new) == 1 else "workers"
            seconds = time.monotonic() - started
            names = ", ".join(new)
            say(f"engine {self.office.what}: {len(new)} {plural} in {seconds:.1f} s: {names}")

    def _await_first(self, say: Say) -> None:
        """Return once a worker is ready; say what keeps them if that takes long."""
        started, said = time.monotonic(), False
        while not any(p.ready for p in self.posts):
            self._await(say)
            if not self.posts:
                self._nobody_left()
            if not said and time.monotonic() - started > _SAID_S:
                self._say_obstacle(say)
                said = True

    def _say_obstacle(self, say: Say) -> None:
        obstacle = self.office.obstacle([p.worker for p in self.posts if not p.ready])
        say(f"engine {self.office.what}: {obstacle}")

    def _await(self, say: Say) -> Sequence[Any]:
        told = self.office.wait([p.worker for p in self.posts if p.jobs or not p.ready], _POLL_S)
        self._admit(say)
        return told

    def _heard(self, say: Say) -> list[_Post]:
        """Return who has something to tell; now and then all, of whom one may hang or be ready.

        Of thousands of workers few have news at a time.
        """
        told = {id(worker) for worker in self._await(say)}
        if time.monotonic() - self.looked < _POLL_S:
            return [post for post in self.posts if id(post.worker) in told]
        self.looked = time.monotonic()
        return self.posts

    def _grow(self, chunks: Chunks, say: Say) -> None:
        """Recruit for the places that came to be since one asked last."""
        if time.monotonic() - self.asked < _GROW_S:
            return
        self.asked = time.monotonic()
        more = self.office.places() - self.wanted
        if more > 0:
            say(f"engine {self.office.what}: places for {more} more")
            self.wanted += more
            for _ in range(more):
                self._recruit()
            chunks.workers = len(self.posts)

    def _recruit(self) -> None:
        assert self.task
        worker = self.office.recruit(f"worker-{next(self.names)}")
        worker.introduce(self.task)
        self.posts.append(_Post(worker))

    def _admit(self, say: Say) -> None:
        """See who is ready, who never will be, and who has had time enough."""
        for post in [p for p in self.posts if not p.ready]:
            waited = time.monotonic() - post.since
            try:
                if post.worker.ready():
                    post.ready, post.since = True, time.monotonic()
                    continue
                if waited <= self.office.patience_s:
                    continue
                why = self.office.obstacle([post.worker]) or "it did not begin"
                raise Lost(f"not ready after {waited:.0f} s: {why}")
            except Refused as why:
                self._let_go(post, f"refused {why}", say, unfit=True)
                if len(self.unfit) + len(self.posts) < 2 * self.wanted:
                    self._recruit()
            except Lost as why:
                self._let_go(post, f"{post.worker.name} is given up: {why}", say)

    def _let_go(self, post: _Post, why: str, say: Say, *, unfit: bool = False) -> None:
        self.posts.remove(post)
        if unfit:
            self.unfit.append(post.worker)
        else:
            post.worker.dismiss()
        if why not in self.gone:
            self.gone.append(why)
            say(f"engine {self.office.what}: {why}")

    def _nobody_left(self) -> None:
        reasons = "\n".join(f"  {why}" for why in self.gone[-6:])
        raise UserError(
            f"engine {self.office.what}: nobody is left to do the work; what was written is kept, "
            f"and the same command goes on\n{reasons}"
        )

    def _give(self, chunks: Chunks, again: deque[_Job], some: Sequence[_Post]) -> bool:
        """Give some posts what there is; return whether anybody is at work or work is left."""
        # Round by round, so that the first chunks do not all queue at the first worker.
        for _ in range(2):
            for post in some:
                if post.room <= 0 or (again and again[0].suspect and post.jobs):
                    continue
                job = again.popleft() if again else None
                if job is None and (batch := next(chunks, None)) is not None:
                    job = _Job(batch)
                if job is None:
                    return any(p.jobs for p in self.posts)
                if not post.jobs:
                    post.since = time.monotonic()
                post.jobs.append(job)
                post.worker.give(job.batch)
        return True

    def _hear(
        self, task: Task, post: _Post, chunks: Chunks, again: deque[_Job], say: Say
    ) -> Iterator[Part]:
        """Take a worker's answers, or find that it is gone or hangs."""
        folder = task.store.results
        while post.jobs:
            try:
                answer = post.worker.answer()
            except Lost as how:
                yield from self._replace(task, post, again, "crash", str(how))
                return
            if answer is None:
                if self._hangs(task, post, chunks):
                    yield from self._replace(task, post, again, "timeout", "no answer in time")
                return
            job = post.jobs.popleft()
            post.since = time.monotonic()
            if isinstance(answer, UserError):
                raise answer
            if unseen := next((p for p in answer if not appears(folder, p.name)), None):
                again.extendleft(reversed([job, *post.jobs]))
                why = f"its part {unseen.name} is not in {folder}, where this process reads"
                self._let_go(post, f"{post.worker.name} is let go: {why}", say, unfit=True)
                return
            learn(chunks, answer)
            yield from answer

    def _hangs(self, task: Task, post: _Post, chunks: Chunks) -> bool:
        points, most = len(post.jobs[0].batch), task.limits.timeout_s
        spent = time.monotonic() - post.since
        if points <= 1 or not chunks.is_known:  # nothing else is known than what one may take
            return spent > max(most, min(points * most, _SHORTEST_S))
        if spent <= max(min(_SHORTEST_S, most), _SHORTEST * most):
            return False
        expected = crowding() * (points * chunks.point_s + chunks.part_s)
        return spent > min(_SLACK * expected, max(most, _LEAST_SLACK * expected))

    def _replace(
        self, task: Task, post: _Post, again: deque[_Job], status: str, reason: str
    ) -> Iterator[Part]:
        """Recruit another worker; requeue what waited, examine what ran."""
        post.worker.dismiss()
        self.posts.remove(post)
        self._recruit()
        culprit, *innocent = post.jobs
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
