"""A worker that is a child of this process: a fresh interpreter that ends when its parent does.

What it shares with its parent is the module search path, the environment and the folder to stand
in. An idle one is kept for the next sweep of this process, since starting one takes about a second.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from simulators.core.errors import UserError
from sweeper.engines.crew import Lost, Team
from sweeper.engines.limits import ONE_THREAD
from sweeper.engines.probe import PROBE_S, PROBES, Estimate, steps
from sweeper.engines.task import Task
from sweeper.space.spans import Batch
from sweeper.store.store import Part

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from sweeper.engines._child import serve; serve(int(sys.argv[1]))"
)
_PDEATHSIG = 1  # <linux/prctl.h>
READY_S = 900.0
"""Within which a child is ready: with cold caches it compiles everything first."""

_PROBE_LIMIT_S = 10.0
"""A point that is tried and takes longer ends the trial: it is dear, or hangs."""


class Child:
    """The parent's end: a `Worker` of a `Team`."""

    depth = 1

    def __init__(self, name: str, *, beside: bool = False) -> None:
        self.pipe, theirs = Pipe()
        self.beside = beside  # others, with one thread each
        self.expected: Task | None = None  # what it was asked to load before it was recruited
        words = [sys.executable, "-P", "-c", _CODE, str(theirs.fileno()), json.dumps(sys.path)]
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter
            words,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=self.environment,
        )
        theirs.close()
        self.name = f"{name} (pid {self.process.pid})"

    @property
    def environment(self) -> dict[str, str]:
        """What it is to find in its environment."""
        return {**os.environ, **(ONE_THREAD if self.beside else {})}

    def introduce(self, task: Task) -> None:
        """Ask it to load what a task needs, or compile it, with others that do."""
        before, self.expected = self.expected, None
        if before is task:
            return
        if before is not None:  # of which nothing came
            with contextlib.suppress(Lost):
                self.receive(READY_S)
        self.send("take", task, str(os.getcwd()), self.environment)  # noqa: PTH109 - a string

    def ready(self) -> bool:
        """Return whether it has."""
        answer = self.receive()
        if isinstance(answer, UserError):
            raise answer
        return answer is not None

    def give(self, batch: Batch) -> None:
        """Send it work."""
        self.send("answer", batch)

    def answer(self) -> list[Part] | UserError | None:
        """Return what it sent back, if anything."""
        found: list[Part] | UserError | None = self.receive()
        return found

    def send(self, order: str, *what: Any) -> None:
        """Ask for something; a child that is gone is noticed when its answer is looked for."""
        try:
            self.pipe.send((order, *what))
        except OSError:
            self.process.kill()

    def receive(self, seconds: float = 0.0) -> Any:
        """Return the next answer; None if there is none within so many seconds.

        Raises:
            Lost: the child is gone.
            Exception: a defect, as it was raised there.
        """
        try:
            if not self.pipe.poll(seconds):
                return None
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.wait()
            raise Lost(_how(self.process.returncode)) from error
        if isinstance(answer, _Defect):
            raise answer.error
        return answer

    def dismiss(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()


@dataclass
class Nursery:
    """Where children come from: an `Office` of a `Team`."""

    what: str = "process"
    patience_s: float = READY_S
    children: int = 1

    def recruit(self, name: str) -> Child:
        """Return a child that is idle, or a new one; each of several has one thread."""
        while _IDLE:
            child = _IDLE.pop()
            if child.process.poll() is None:
                return child
            child.dismiss()
        return Child(name, beside=self.children > 1)

    def wait(self, workers: Sequence[Child], seconds: float) -> list[Child]:
        """Return those that say something, or are gone."""
        told = wait([w.pipe for w in workers], seconds)
        return [w for w in workers if w.pipe in told]

    def places(self) -> int:
        """Return how many children are at work."""
        return self.children

    def obstacle(self, workers: Sequence[Child]) -> str:
        """Return what a child that is not ready is doing."""
        names = ", ".join(worker.name for worker in workers)
        return f"waiting for {names} to load, or compile, what the simulator needs"


_IDLE: list[Child] = []
"""Children that wait for the next sweep of this process."""


@contextlib.contextmanager
def team(children: int = 1) -> Iterator[Team]:
    """Return a team of children; what is left of one is kept afterwards."""
    crew = Team(Nursery(children=children), wanted=children)
    try:
        yield crew
    except BaseException:
        crew.dismiss()
        raise
    if children > 1:
        crew.dismiss()
    _IDLE.extend(p.worker for p in crew.posts if p.ready and not p.jobs)


def expect(task: Task) -> None:
    """Have an idle child load what a task needs, for whoever recruits it."""
    child = Nursery().recruit("worker-0")
    child.introduce(task)
    child.expected = task
    _IDLE.append(child)


def probed(task: Task, asked: int, *, patience_s: float = PROBE_S) -> Estimate:
    """Return what `probe` finds of so many points, tried in a child; what is known if it ends."""
    found, child = Estimate(0, 0.0), Nursery().recruit("probe")
    since = time.monotonic()
    try:
        child.introduce(task)
        _await(child, READY_S)
        child.send("probe", asked, PROBES, patience_s)
        while (news := _await(child, min(task.limits.timeout_s, _PROBE_LIMIT_S))) != "done":
            found, since = news, time.monotonic()
    except Lost as how:
        child.dismiss()
        # As many again were being tried: what that took counts, or the dear ones are left out.
        tried_s = found.probes * found.point_s + time.monotonic() - since
        point_s = tried_s / (2 * found.probes + 1) if found.probes else _PROBE_LIMIT_S
        return replace(found, point_s=point_s, stopped=f"one of them: {how}")
    except BaseException:
        child.dismiss()
        raise
    _IDLE.append(child)
    return found


def _await(child: Child, seconds: float) -> Any:
    """Return the next answer; raise what a child answers that is an error, or `Lost` if none is."""
    answer = child.receive(seconds)
    if isinstance(answer, UserError):
        raise answer
    if answer is None:
        raise Lost(f"no answer within {seconds:g} s")
    return answer


@atexit.register
def _part() -> None:
    for child in _IDLE:
        child.dismiss()


def _how(code: int) -> str:
    """Return how a process ended."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"


@dataclass
class _Defect:
    """What a child raised that is nobody's mistake but ours."""

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as text where the error itself cannot."""
        try:
            pickle.loads(pickle.dumps(self.error))  # noqa: S301 - written a moment ago
        except Exception:  # noqa: BLE001 - whatever its class does
            return (_Defect, (RuntimeError(f"{type(self.error).__name__}: {self.error}"),))
        return (_Defect, (self.error,))


@dataclass
class Serving:
    """The child's end."""

    pipe: Connection
    task: Task | None = None

    def take(self, task: Task, folder: str, environment: dict[str, str]) -> str:
        """Make ready for a task."""
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        self.task = task
        task.warm_up()
        task.limits.hold_memory()
        return "ready"

    def answer(self, batch: Batch) -> list[Part]:
        """Answer a batch."""
        assert self.task
        return list(self.task.answer_in_parts(batch))

    def probe(self, asked: int, probes: int, patience_s: float) -> str:
        """Evaluate a few points; send what is known after each step."""
        assert self.task
        space = self.task.space
        for estimate in steps(space, asked=asked, probes=probes, patience_s=patience_s):
            self.pipe.send(estimate)
        return "done"


def serve(file: int) -> None:
    """Do what the parent asks until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent, who got it too, decides
    _die_with_parent()
    serving = Serving(Connection(file))
    orders: dict[str, Callable[..., Any]]
    orders = {"take": serving.take, "answer": serving.answer, "probe": serving.probe}
    while True:
        try:
            order, *what = serving.pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = orders[order](*what)
        except UserError as error:
            answer = error
        except MemoryError:
            os._exit(1)  # beyond its limit where no point can be told from another
        except Exception as error:  # noqa: BLE001 - shown by the parent as it is
            answer = _Defect(error)
        try:
            serving.pipe.send(answer)
        except OSError:
            return


def _die_with_parent() -> None:
    """Have this process killed when its parent ends, whatever it is doing then."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """End this process when its parent has: where the system does not, or a thread began it."""
    while os.getppid() == parent:
        threading.Event().wait(1.0)
    os._exit(0)
