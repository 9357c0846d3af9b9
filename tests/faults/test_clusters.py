"""Sweeps on several nodes, which are lost, join, or would mix or lose rows.

The tests share one head, and a node that joins for several of them.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest
from polars.testing import assert_frame_equal

from sweeper.report.answers import latest
from sweeper.store.parquet import metadata
from tests.faults.machines import (
    ENVIRONMENT,
    LINES_OF_RAY,
    LONG,
    SPACE,
    STOPPED_S,
    Machines,
    Running,
    cluster,
    hurry,
    kill,
    mount,
    needs_namespaces,
    rows,
    start,
    until_parts,
)
from tests.faults.test_disks import DAMAGES

pytestmark = [pytest.mark.slow, pytest.mark.ray, needs_namespaces, pytest.mark.timeout(900)]


def check_rows(folder: Path) -> None:
    """Check that every point has one row, equal to the row of an undisturbed sweep."""
    found = rows(folder)
    assert found["n"].to_list() == list(range(200))
    assert set(found["status"]) == {"ok"}
    assert found["hashed"].to_list() == [n * 2654435761 % 2**32 / 7.0 for n in range(200)]


def on(machines: Machines) -> tuple[str, str]:
    """Return the options of a sweep on a cluster."""
    return "engine=ray", f"engine.address={machines.address}"


def started(machines: Machines, folder: Path, *words: str, space: str = LONG) -> Running:
    """Start a sweep on two nodes, and return once parts are written."""
    machines.resize(2)
    running = start(folder, space, *on(machines), *words)
    until_parts(running, folder)
    return running


def test_damaged_parts_are_reevaluated_on_two_nodes(machines: Machines, tmp_path: Path) -> None:
    quick = SPACE.replace("0.05", "0.01")
    assert start(tmp_path, quick, "engine=inline").wait() == 0
    quiet = rows(tmp_path)
    parts = sorted(tmp_path.glob("outputs/toy/results/*/*.parquet"))
    for part, damage in zip(parts, DAMAGES.values(), strict=False):
        part.write_bytes(damage(part.read_bytes()))
    machines.resize(2)
    running = start(tmp_path, quick, *on(machines))
    assert running.wait() == 0, running.text()
    assert "engine ray: 2 workers in" in running.text()
    assert "is damaged" in running.text()
    assert not LINES_OF_RAY.search(running.text()), running.text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what lies there damaged still
        found = latest("toy", str(tmp_path / "outputs")).results.collect().sort("n")
    assert_frame_equal(found.select(quiet.columns), quiet, check_exact=True)


def test_killed_actor_is_replaced(machines: Machines, tmp_path: Path) -> None:
    running = started(machines, tmp_path)
    machines.actor().kill()
    hurry(tmp_path)
    assert running.wait() == 0, running.text()
    assert not LINES_OF_RAY.search(running.text()), running.text()
    check_rows(tmp_path)


def test_sweep_continues_after_an_actor_was_stopped(machines: Machines, tmp_path: Path) -> None:
    running = started(machines, tmp_path)
    stopped = machines.actor()
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    stopped.send_signal(signal.SIGCONT)
    hurry(tmp_path)
    assert running.wait() == 0, running.text()
    check_rows(tmp_path)


def test_actor_stopped_for_good_is_replaced(machines: Machines, tmp_path: Path) -> None:
    running = started(machines, tmp_path, "failures.timeout_s=5", space=SPACE)
    stopped = machines.actor()
    stopped.send_signal(signal.SIGSTOP)
    assert running.wait() == 0, running.text()
    check_rows(tmp_path)
    psutil.wait_procs([stopped], timeout=15.0)
    assert not stopped.is_running()


def test_sweep_continues_after_losing_a_node(machines: Machines, tmp_path: Path) -> None:
    running = started(machines, tmp_path)
    machines.leave()
    hurry(tmp_path)
    assert running.wait() == 0, running.text()
    check_rows(tmp_path)
    assert not LINES_OF_RAY.search(running.text()), running.text()


def test_node_joining_a_running_sweep_is_used(machines: Machines, tmp_path: Path) -> None:
    machines.resize(1)
    running = start(tmp_path, LONG, *on(machines))
    running.until((tmp_path / "log.txt").exists)
    machines.resize(2)
    folder = str(tmp_path / "outputs" / "toy" / "results" / "tests.toys.counting-v1")

    def writers() -> int:
        parts = [file.name for file in Path(folder).glob("*.parquet")]
        return len({metadata(folder, part)["by"] for part in parts})

    running.until(lambda: writers() == 2)
    hurry(tmp_path)
    assert running.wait() == 0, running.text()
    assert "engine ray: places for 1 more" in running.text()
    check_rows(tmp_path)


REFUSED = {
    "storage": "does not arrive here; share that folder",
    "read-only": "may not be written",
    "folder": "No such file or directory",
    "other code": "digest of sources and facts is",
    "no code": "No module named 'sweeper|digest of sources",
}
"""Kind of a node, and the reason why it is refused."""


def test_nodes_with_different_environments_are_refused_by_name(
    machines: Machines, tmp_path: Path
) -> None:
    folder = tmp_path / "shared" / "work"
    (folder / "outputs").mkdir(parents=True)
    machines.resize(1)
    machines.join(*(mount(kind, folder, tmp_path) for kind in REFUSED))
    running = start(folder, LONG, *on(machines))
    try:
        running.until(
            lambda: all(
                re.search(f"refused .*({said})", running.text()) for said in REFUSED.values()
            )
        )
        hurry(folder)
        assert running.wait() == 0, running.text()
    finally:
        machines.leave(len(REFUSED))
    log = running.text()
    refused = [line for line in log.splitlines() if "refused actor-" in line]
    # An actor without code dies, so its node is tried again; the others keep their CPU.
    for kind, said in REFUSED.items():
        times = sum(bool(re.search(said, line)) for line in refused)
        assert times >= 1 if kind.endswith("code") else times == 1, log
    assert "engine ray: 1 worker in" in log
    assert not LINES_OF_RAY.search(log), log
    assert not list((folder / "outputs").rglob(".token-*"))
    check_rows(folder)
    alone = tmp_path / "alone"
    alone.mkdir()
    hurry(alone)
    assert start(alone, LONG, "engine=inline").wait() == 0
    assert_frame_equal(rows(folder), rows(alone), check_exact=True)


HOLDER = """\
import ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
@ray.remote(num_cpus=1)
class Holder:
    def hold(self): return 1
held = Holder.remote()
ray.get(held.hold.remote())
print("held", flush=True)
sys.stdin.read()
"""


def test_busy_cluster_is_reported_and_waited_for(machines: Machines, tmp_path: Path) -> None:
    machines.resize(1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, machines.address],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout
    assert holder.stdin
    while "held" not in holder.stdout.readline():
        assert holder.poll() is None
    words = on(machines)
    running = start(tmp_path, SPACE.replace("0.05", "0.01"), *words)
    try:
        running.until(
            lambda: "waiting for 1 actors to start; 0 of 1 CPUs are free" in running.text()
        )
        impatient = start(tmp_path / "other", SPACE, *words, "engine.ready_s=3")
        assert impatient.wait() == 2
        assert "no worker is left" in impatient.text()
    finally:
        holder.stdin.close()
        holder.wait()
    assert running.wait() == 0, running.text()
    check_rows(tmp_path)


def test_lost_cluster_ends_the_sweep(tmp_path: Path) -> None:
    with cluster() as machines:
        running = start(tmp_path, LONG, *on(machines), "engine.ready_s=20")
        running.until(lambda: (tmp_path / "log.txt").exists())
        kill(machines.nodes.pop())
        assert running.wait(30.0) == 2, running.text()
    assert "the head of the cluster does not answer" in running.text()
    hurry(tmp_path)
    assert start(tmp_path, LONG, "engine=inline").wait() == 0
    check_rows(tmp_path)
