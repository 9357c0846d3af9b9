"""Sweeps as commands, and clusters of several raylets on one machine.

A mount namespace of its own makes of a raylet a machine that lacks a folder, or has other code.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import psutil
import pytest

from tests.conftest import ROOT

SPACE = "simulator: tests.toys.counting\naxes: {n: 0..199, log: log.txt, pause_s: 0.05}\n"
LINES_OF_RAY = re.compile(r"raylet|ray::|\(pid=|core_worker|gcs|Lease ID|Traceback")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "POLARS_MAX_THREADS": "1",
}
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
        )
    return Running(process, log)


def rows(folder: Path, by: str = "n", name: str = "toy") -> pl.DataFrame:
    """Read the files as anybody would, without the store."""
    return pl.scan_parquet(f"{folder}/outputs/{name}/results/*/*.parquet").collect().sort(by)


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


@dataclass
class Machines:
    """A head and further raylets."""

    address: str
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def join(self, *mounts: str) -> subprocess.Popen[bytes]:
        """Start a raylet of one CPU that sees the file system after these commands."""
        ray = f"{sys.executable} -m ray.scripts.scripts start --address={self.address}"
        script = " && ".join([*mounts, f"exec {ray} --num-cpus=1 --block"])
        node = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script],
            env=ENVIRONMENT,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.nodes.append(node)
        until(lambda: self.cpus() == len(self.nodes), 90.0, lambda: node.poll() is None)
        return node

    def cpus(self) -> int:
        """Return how many CPUs the cluster says it has."""
        code = (
            f"import ray; ray.init(address='{self.address}', log_to_driver=False, "
            "logging_level='CRITICAL'); print('CPUs', int(ray.cluster_resources().get('CPU', 0)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        cpus = re.search(r"^CPUs (\d+)$", done.stdout, flags=re.MULTILINE)  # Ray adds lines
        return int(cpus[1]) if cpus else 0

    def leave(self, node: subprocess.Popen[bytes]) -> None:
        """Kill a raylet and all that it started."""
        self.nodes.remove(node)
        kill(node)
        until(lambda: self.cpus() == len(self.nodes), 90.0)


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants."""
    for process in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    node.wait()


@contextmanager
def cluster() -> Iterator[Machines]:
    """Start a head of one CPU."""
    from ray._private.services import get_node_ip_address

    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    found = Machines(f"{get_node_ip_address()}:{port}")
    words = ["start", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    head = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            *words,
            "--block",
            "--object-store-memory=100000000",
        ],
        env=ENVIRONMENT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found.nodes.append(head)
    try:
        until(lambda: found.cpus() == 1, 120.0, lambda: head.poll() is None)
        yield found
    finally:
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
