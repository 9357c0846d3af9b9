"""The engine of child processes: a point that hangs, exits or takes all memory costs its row.

A child is a fresh interpreter with its parent's module search path, environment and current folder,
and ends when its parent does. A single idle child is kept for the next sweep of this process, since
starting one takes about a second.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from sweeper.engines import Pool
from sweeper.engines.chunks import PROBE_S, Estimate, measured
from sweeper.engines.pool import ONE_THREAD, LostWorker, Worker, WorkerPool
from sweeper.engines.task import Task, keep_freed_memory
from sweeper.space.points import Batch
from sweeper.store.store import Part

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from sweeper.engines.process import serve; serve(int(sys.argv[1]))"
)
_PDEATHSIG = 1  # <linux/prctl.h>
_READY_S = 900.0
"""Time within which a child is ready: with cold caches it compiles everything first."""
_PROBE_LIMIT_S = 20.0  # a probe that takes longer is ended; it should take two seconds


@dataclass(frozen=True)
class Process:
    """Workers on this machine, killed and replaced where a point exceeds its limits.

    Args:
        workers: number of processes; 0 takes one per core.
    """

    workers: int = 1

    @contextmanager
    def open(self) -> Iterator[Pool]:
        """Return a pool of children, which are shut down at the end; a single one is kept idle."""
        pool = ProcessPool(self.workers or os.cpu_count() or 1)
        try:
            yield pool
            if pool.wanted == 1:
                idle = [w for w in pool.workers if w.is_ready and w.job is None]
                pool.workers = [w for w in pool.workers if w not in idle]
                idle_children().extend(idle)
        finally:
            pool.shut_down()


ENGINE = Process


class ChildProcess(Worker):
    """The parent's end of a child."""

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
        super().__init__(f"{name} (pid {self.process.pid})")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the child."""
        return {**os.environ, **(ONE_THREAD if self.one_thread else {})}

    def load(self, task: Task) -> None:
        """Start to load or compile the simulator of a task."""
        self.send("load", task, str(Path.cwd()), self.environment)

    def is_loaded(self) -> bool:
        """Return whether the task is loaded."""
        answer = self.poll()
        if isinstance(answer, UserError):
            raise answer
        return answer is not None

    def submit(self, batch: Batch) -> None:
        """Send a batch."""
        self.send("answer", batch)

    def send(self, order: str, *arguments: Any) -> None:
        """Send an order; the loss of the child is noticed when its answer is awaited."""
        try:
            self.pipe.send((order, *arguments))
        except OSError:
            self.process.kill()

    def poll(self, seconds: float = 0.0) -> Any:
        """Return the next answer; None if there is none within `seconds`.

        Raises:
            LostWorker: the child is gone.
            RuntimeError: the child raised an unexpected exception.
        """
        try:
            if not self.pipe.poll(seconds):
                return None
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            code = self.process.wait()
            killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
            raise LostWorker(killed or f"it ended with code {code}") from error
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def shut_down(self) -> None:
        """Kill the child."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()


class ProcessPool(WorkerPool):
    """A pool of child processes; each of several has one thread."""

    engine = "process"
    ready_s = _READY_S

    def spawn(self, name: str) -> ChildProcess:
        """Return an idle child or a new one."""
        return _child(name, one_thread=self.wanted > 1)

    def wait(self, workers: Sequence[ChildProcess], seconds: float) -> list[ChildProcess]:
        """Return the children that sent an answer or are gone."""
        news = wait([w.pipe for w in workers], seconds)
        return [w for w in workers if w.pipe in news]

    def obstacle(self, workers: Sequence[ChildProcess]) -> str:
        """Return the names of the children that are not ready."""
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


def _child(name: str, *, one_thread: bool = False) -> ChildProcess:
    """Return an idle child that is alive, else a new one."""
    while idle_children():
        child = idle_children().pop()
        if child.process.poll() is None:
            return child
        child.shut_down()
    return ChildProcess(name, one_thread=one_thread)


def probed(task: Task, asked: int, patience_s: float = PROBE_S, most_s: float = 0.0) -> Estimate:
    """Return the time of a point as `chunks.measured` measures it in a child.

    A child that is lost or silent counts as one point of `_PROBE_LIMIT_S`.
    """
    child = _child("probe")
    limit_s = min(task.limits.timeout_s, _PROBE_LIMIT_S)
    try:
        child.load(task)
        _await(child, _READY_S)
        child.send("probe", asked, patience_s, most_s)
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
    answer = child.poll(seconds)
    if isinstance(answer, UserError):
        raise answer
    if answer is None:
        raise LostWorker(f"no answer within {seconds:g} s")
    return answer


class _Orders:
    """The orders that a child executes for its parent."""

    task: Task
    work: Any

    def load(self, task: Task, folder: str, environment: dict[str, str]) -> str:
        """Load a task."""
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        self.task = task
        keep_freed_memory()
        task.warm_up()
        task.limits.hold_memory()
        return "ready"

    def answer(self, batch: Batch) -> list[Part]:
        """Evaluate a batch."""
        return list(self.task.answer_in_parts(batch))

    def keep(self, work: Any, folder: str, environment: dict[str, str]) -> str:
        """Keep an object whose methods are called later."""
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        self.work = work
        keep_freed_memory()
        return "ready"

    def call(self, method: str, *columns: Any) -> Any:
        """Return what a method of the object that is kept answers."""
        return getattr(self.work, method)(*columns)

    def probe(self, asked: int, patience_s: float, most_s: float) -> Estimate:
        """Evaluate a few points without keeping their rows, and return the time of a point."""
        return measured(self.task.space, asked, patience_s, most_s)


def serve(file: int) -> None:
    """Execute the orders that arrive on a connection until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives the signal too
    _die_with_parent()
    pipe, orders = Connection(file), _Orders()
    while True:
        try:
            order, *arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = getattr(orders, order)(*arguments)
        except UserError as error:
            answer = error
        except MemoryError:
            os._exit(1)  # over its limit, at no identifiable point
        except Exception:  # noqa: BLE001 - raised again by the parent
            answer = RuntimeError(traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return


def _die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    parent = os.getppid()

    def watch() -> None:  # for systems without a parent-death signal
        while os.getppid() == parent:
            threading.Event().wait(1.0)
        os._exit(0)

    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=watch, daemon=True).start()
