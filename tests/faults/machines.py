"""Sweeps as commands, and clusters of several raylets on one machine.

A mount namespace of its own makes of a raylet a machine that lacks a folder, or has other code.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import psutil
import pytest

from tests.conftest import ROOT
from tests.toys.counting import HURRY

SPACE = "simulator: tests.toys.counting\naxes: {n: 0..199, log: log.txt, pause_s: 0.05}\n"
LONG = SPACE.replace("0.05", "0.3")  # it ends in time once the test calls `hurry`
LINES_OF_RAY = re.compile(r"raylet|ray::|\(pid=|core_worker|gcs|Lease ID|Traceback")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_prestart_worker_first_driver": "0",  # idle workers that no actor of ours uses
    "RAY_enable_worker_prestart": "0",
    "POLARS_MAX_THREADS": "1",
}
STOPPED_S = 7.0  # time for which a process is stopped; a check every 5 s meets it
SILENT_S = 30.0  # longest time without a line of a sweep that is allowed
needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="mount namespaces are not allowed here",
)


@dataclass
class Running:
    """A command of the sweeper that was started."""

    process: subprocess.Popen[str]
    log: Path
    silent_s: float = math.inf  # time without a new line after which `wait` fails

    def text(self) -> str:
        """Return all that it printed."""
        return self.log.read_text()

    def wait(self, seconds: float = 240.0) -> int:
        """Return its exit code; fail if it prints nothing for longer than `silent_s`."""
        end, printed, heard = time.monotonic() + seconds, 0, time.monotonic()
        while self.process.poll() is None:
            now = time.monotonic()
            if (size := self.log.stat().st_size) != printed:
                printed, heard = size, now
            assert now < end, f"it has not ended after {seconds:g} s: {self.text()}"
            assert now - heard < self.silent_s, f"it is silent: {self.text()}"
            time.sleep(0.05)
        return self.process.returncode

    def until(self, happened: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait for something to happen while it runs."""
        until(happened, seconds, lambda: self.process.poll() is None, self.text)


def until(
    happened: Callable[[], object],
    seconds: float,
    alive: Callable[[], bool] = lambda: True,
    log: Callable[[], str] = lambda: "",
) -> None:
    """Wait for something to happen."""
    end = time.monotonic() + seconds
    while not happened():
        assert alive(), f"it ended: {log()}"
        assert time.monotonic() < end, f"it did not happen: {log()}"
        time.sleep(0.05)


def start(folder: Path, space: str, *words: str, name: str = "toy", **environment: str) -> Running:
    """Start a sweep of a space that is written as YAML, in a folder."""
    (folder / "spaces").mkdir(parents=True, exist_ok=True)
    (folder / "spaces" / f"{name}.yaml").write_text(space)
    running = command(folder, f"+space={name}", "plot=false", *words, **environment)
    running.silent_s = SILENT_S
    return running


def command(folder: Path, *words: str, **environment: str) -> Running:
    """Start a command of the sweeper in a folder."""
    log = folder / f"log-{time.monotonic_ns()}.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "sweeper", *words],
            cwd=folder,
            stdout=stream,
            stderr=stream,
            env={**ENVIRONMENT, **environment},
            text=True,
            preexec_fn=functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # `nohup`
        )
    return Running(process, log)


def rows(folder: Path, by: str = "n", name: str = "toy") -> pl.DataFrame:
    """Read the files as anybody would, without the store."""
    return pl.scan_parquet(f"{folder}/outputs/{name}/results/*/*.parquet").collect().sort(by)


def until_parts(running: Running, folder: Path) -> None:
    """Wait until a sweep has written some parts."""
    running.until(lambda: len(list(folder.glob("outputs/toy/results/*/*.parquet"))) > 2)


def kin(mark: str) -> list[psutil.Process]:
    """Return the processes whose environment holds a mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def hurry(folder: Path) -> None:
    """Let the remaining points of a sweep take no time."""
    (folder / HURRY).touch()


ASKED = """\
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
print("connected", flush=True)
for _ in sys.stdin:
    print(int(ray.cluster_resources().get("CPU", 0)), flush=True)
"""


@dataclass
class Machines:
    """A head and further raylets of one CPU each, and a process that knows their number."""

    address: str
    log: Path  # of what their processes print; also the variable MARK of these processes
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    asked: subprocess.Popen[str] | None = None

    def join(self, *mounts: Sequence[str]) -> None:
        """Start a raylet per list of commands, which it sees the file system after."""
        ray = f"{sys.executable} -m ray.scripts.scripts start --address={self.address}"
        for commands in mounts:
            script = " && ".join([*commands, f"exec {ray} --num-cpus=1 --block"])
            self.spawn("unshare", "-m", "sh", "-c", script)

    def spawn(self, *words: str) -> None:
        """Start a raylet; a head notices that one was killed after 2.5 s instead of 15 s."""
        environment = {"MARK": str(self.log), "RAY_health_check_period_ms": "500"}
        with self.log.open("a") as stream:
            node = subprocess.Popen(
                words,
                env={**ENVIRONMENT, **environment},
                start_new_session=True,
                stdout=stream,
                stderr=stream,
            )
        self.nodes.append(node)
        self._settle(lambda: node.poll() is None)

    def _settle(self, alive: Callable[[], bool] = lambda: True) -> None:
        """Wait until the cluster has one CPU per raylet."""
        until(lambda: self.cpus() == len(self.nodes), 120.0, alive, self.log.read_text)

    def leave(self, count: int = 1) -> None:
        """Kill the raylets that joined last, and all that they started."""
        for _ in range(count):
            kill(self.nodes.pop())
        self._settle()

    def resize(self, count: int) -> None:
        """Let nodes that see the same files join, or leave, until there are so many."""
        self.join(*[()] * (count - len(self.nodes)))
        self.leave(len(self.nodes) - count)

    def cpus(self) -> int:
        """Return how many CPUs the cluster says it has."""
        if self.asked is None or self.asked.poll() is not None:
            self.asked = subprocess.Popen(
                [sys.executable, "-c", ASKED, self.address],
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if not self._answer("connected"):
                return 0
        assert self.asked.stdin
        self.asked.stdin.write("\n")
        self.asked.stdin.flush()
        return int(self._answer(r"\d+") or 0)

    def _answer(self, pattern: str) -> str:
        """Return the next line of the process that matches; nothing if it has ended."""
        assert self.asked
        assert self.asked.stdout
        lines = (line.strip() for line in self.asked.stdout)  # Ray adds lines
        return next((line for line in lines if re.fullmatch(pattern, line)), "")

    def actor(self) -> psutil.Process:
        """Return the process of an actor of a sweep."""
        return next(p for p in kin(str(self.log)) if p.name().startswith("ray::_Remote"))


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(node.pid)
        for process in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    node.wait()


@contextlib.contextmanager
def cluster() -> Iterator[Machines]:
    """Start a head of one CPU."""
    from ray._private.services import get_node_ip_address

    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    words = ["start", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    with tempfile.TemporaryDirectory() as folder:
        found = Machines(f"{get_node_ip_address()}:{port}", Path(folder) / "log.txt")
        try:
            found.spawn(*ray, *words, "--block", "--object-store-memory=100000000")
            yield found
        finally:
            if found.asked:
                found.asked.kill()
                found.asked.wait()
            for node in reversed(found.nodes):
                kill(node)


def mount(kind: str, folder: Path, scratch: Path) -> list[str]:
    """Return the commands that make a raylet a machine of some kind, for a sweep in a folder."""
    other = scratch / "errors.py"
    shipped = ROOT / "simulators" / "core" / "errors.py"
    other.write_text(shipped.read_text() + "\nLATER = 1\n")
    target = {"storage": folder / "outputs", "folder": folder.parent, "no code": ROOT / "sweeper"}
    if kind == "read-only":
        there = shlex.quote(str(target["storage"]))
        return [f"mount --bind {there} {there}", f"mount -o remount,ro,bind {there}"]
    if kind == "other code":
        return [f"mount --bind {shlex.quote(str(other))} {shlex.quote(str(shipped))}"]
    return [f"mount -t tmpfs none {shlex.quote(str(target[kind]))}"] if kind in target else []
