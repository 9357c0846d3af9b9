"""Workers that are child processes: fresh interpreters that end when their parent does.

A child has its parent's module search path, environment and current folder. Idle children are kept
for the next sweep of this process, since starting one takes about a second.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from sweeper.engines.limits import ONE_THREAD
from sweeper.engines.pool import LostWorker, WorkerPool
from sweeper.engines.probe import PROBE_S, Estimate, measured
from sweeper.engines.task import Task
from sweeper.space.points import Batch
from sweeper.store.store import Part

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from sweeper.engines.child_process import serve; serve(int(sys.argv[1]))"
)
_PDEATHSIG = 1  # <linux/prctl.h>
READY_S = 900.0
"""Time within which a child is ready: with cold caches it compiles everything first."""

_PROBE_LIMIT_S = 20.0
"""A probe that takes longer is ended; it should take two seconds."""


class ChildProcess:
    """The parent's end of a child: a `Worker`."""

    depth = 1

    def __init__(self, name: str, *, one_thread: bool = False) -> None:
        self.pipe, theirs = Pipe()
        self.one_thread = one_thread
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
        """The environment of the child."""
        return {**os.environ, **(ONE_THREAD if self.one_thread else {})}

    def load(self, task: Task) -> None:
        """Start to load or compile the simulator of a task."""
        self.send("load", task, str(Path.cwd()), self.environment)

    def ready(self) -> bool:
        """Return whether the task is loaded."""
        answer = self.receive()
        if isinstance(answer, UserError):
            raise answer
        return answer is not None

    def submit(self, batch: Batch) -> None:
        """Send a batch."""
        self.send("answer", batch)

    def poll(self) -> list[Part] | UserError | None:
        """Return the answer, None if there is none yet."""
        found: list[Part] | UserError | None = self.receive()
        return found

    def send(self, order: str, *what: Any) -> None:
        """Send an order; that a child is gone is noticed when its answer is awaited."""
        try:
            self.pipe.send((order, *what))
        except OSError:
            self.process.kill()

    def receive(self, seconds: float = 0.0) -> Any:
        """Return the next answer; None if there is none within so many seconds.

        Raises:
            LostWorker: the child is gone.
            Exception: a defect, as the child raised it.
        """
        try:
            if not self.pipe.poll(seconds):
                return None
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.wait()
            raise LostWorker(_how(self.process.returncode)) from error
        if isinstance(answer, _Defect):
            raise answer.error
        return answer

    def shut_down(self) -> None:
        """Kill the child."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()


@dataclass
class ProcessFactory:
    """Spawns child processes: a `WorkerFactory`."""

    children: int = 1
    engine: str = "process"
    ready_s: float = READY_S

    def spawn(self, name: str) -> ChildProcess:
        """Return an idle child or a new one; each of several has one thread."""
        idle = idle_children()
        while idle:
            child = idle.pop()
            if child.process.poll() is None:
                return child
            child.shut_down()
        return ChildProcess(name, one_thread=self.children > 1)

    def wait(self, workers: Sequence[ChildProcess], seconds: float) -> list[ChildProcess]:
        """Return the children that sent an answer or are gone."""
        news = wait([w.pipe for w in workers], seconds)
        return [w for w in workers if w.pipe in news]

    def capacity(self) -> int:
        """Return the number of children."""
        return self.children

    def obstacle(self, workers: Sequence[ChildProcess]) -> str:
        """Return what children that are not ready are doing."""
        names = ", ".join(worker.name for worker in workers)
        return f"compiling the simulator in {names} (first run only)"


@functools.cache
def idle_children() -> list[ChildProcess]:
    """Return the children that wait for the next sweep; those left at exit are killed."""
    idle: list[ChildProcess] = []

    @atexit.register
    def shut_down() -> None:
        for child in idle:
            child.shut_down()

    return idle


@contextlib.contextmanager
def opened_pool(children: int = 1) -> Iterator[WorkerPool]:
    """Return a pool of children; a single one is kept idle afterwards."""
    pool = WorkerPool(ProcessFactory(children), wanted=children)
    try:
        yield pool
    except BaseException:
        pool.shut_down()
        raise
    if children > 1:
        pool.shut_down()
    for slot in pool.slots:
        if slot.ready and not slot.jobs:
            idle_children().append(slot.worker)
        else:
            slot.worker.shut_down()


def probed(task: Task, asked: int, patience_s: float = PROBE_S) -> Estimate:
    """Return the time of a point as `probe.measured` measures it in a child.

    A child that is lost or silent counts as one point of `_PROBE_LIMIT_S`.
    """
    child = ProcessFactory().spawn("probe")
    limit_s = min(task.limits.timeout_s, _PROBE_LIMIT_S)
    try:
        child.load(task)
        _await(child, READY_S)
        child.send("probe", asked, patience_s)
        found: Estimate = _await(child, limit_s)
    except LostWorker as how:
        child.shut_down()
        return Estimate(0, limit_s, stopped=f"one of them: {how}")
    except BaseException:
        child.shut_down()
        raise
    idle_children().append(child)
    return found


def _await(child: ChildProcess, seconds: float) -> Any:
    """Return the next answer; raise it if it is an error, or `LostWorker` if there is none."""
    answer = child.receive(seconds)
    if isinstance(answer, UserError):
        raise answer
    if answer is None:
        raise LostWorker(f"no answer within {seconds:g} s")
    return answer


def _how(code: int) -> str:
    """Return how a process ended."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"


@dataclass
class _Defect:
    """An unexpected exception of a child."""

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as text where the exception cannot be pickled."""
        try:
            pickle.loads(pickle.dumps(self.error))  # noqa: S301 - written a moment ago
        except Exception:  # noqa: BLE001 - whatever its class does
            return (_Defect, (RuntimeError(f"{type(self.error).__name__}: {self.error}"),))
        return (_Defect, (self.error,))


class _Child:
    """The child's end: executes the orders of its parent."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.task: Task | None = None

    def load(self, task: Task, folder: str, environment: dict[str, str]) -> str:
        """Load a task."""
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        self.task = task
        task.warm_up()
        task.limits.hold_memory()
        return "ready"

    def answer(self, batch: Batch) -> list[Part]:
        """Evaluate a batch."""
        assert self.task
        return list(self.task.answer_in_parts(batch))

    def probe(self, asked: int, patience_s: float) -> Estimate:
        """Evaluate a few points without keeping them, and return the time of one."""
        assert self.task
        return measured(self.task.space, asked, patience_s)


def serve(file: int) -> None:
    """Execute the orders of the parent until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent, who got it too, decides
    _die_with_parent()
    child = _Child(Connection(file))
    orders: dict[str, Callable[..., Any]]
    orders = {"load": child.load, "answer": child.answer, "probe": child.probe}
    while True:
        try:
            order, *arguments = child.pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = orders[order](*arguments)
        except UserError as error:
            answer = error
        except MemoryError:
            os._exit(1)  # over its limit, at no identifiable point
        except Exception as error:  # noqa: BLE001 - raised again by the parent
            answer = _Defect(error)
        try:
            child.pipe.send(answer)
        except OSError:
            return


def _die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """End this process when its parent has ended; for systems without a parent-death signal."""
    while os.getppid() == parent:
        threading.Event().wait(1.0)
    os._exit(0)
