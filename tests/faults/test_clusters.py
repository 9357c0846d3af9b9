"""Sweeps on several nodes: nodes that would mix or lose rows are refused by name."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from sweeper.report.answers import latest
from sweeper.store.parquet import metadata
from tests.faults.machines import (
    ENVIRONMENT,
    LINES_OF_RAY,
    SPACE,
    Machines,
    cluster,
    kill,
    needs_namespaces,
    rows,
    start,
)
from tests.faults.test_disks import DAMAGES

pytestmark = [pytest.mark.slow, pytest.mark.ray, needs_namespaces, pytest.mark.timeout(900)]


def check_rows(folder: Path) -> None:
    """Check that every point has one row, equal to the row of an undisturbed sweep."""
    found = rows(folder)
    assert found["n"].to_list() == list(range(200))
    assert set(found["status"]) == {"ok"}
    assert found["hashed"].to_list() == [n * 2654435761 % 2**32 / 7.0 for n in range(200)]


def test_damaged_parts_are_reevaluated_on_two_nodes(machines: Machines, tmp_path: Path) -> None:
    quick = SPACE.replace("0.05", "0.01")
    assert start(tmp_path, quick, "engine=inline").wait() == 0
    quiet = rows(tmp_path)
    parts = sorted(tmp_path.glob("outputs/toy/results/*/*.parquet"))
    for part, damage in zip(parts, DAMAGES.values(), strict=False):
        part.write_bytes(damage(part.read_bytes()))
    node = machines.join()
    try:
        running = start(tmp_path, quick, "engine=ray", f"engine.address={machines.address}")
        assert running.wait() == 0, running.text()
    finally:
        machines.leave(node)
    assert "engine ray: 2 workers in" in running.text()
    assert "is damaged" in running.text()
    assert not LINES_OF_RAY.search(running.text()), running.text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what lies there damaged still
        found = latest("toy", str(tmp_path / "outputs")).results.collect().sort("n")
    assert_frame_equal(found.select(quiet.columns), quiet, check_exact=True)


def test_sweep_continues_after_losing_a_node(machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    node = machines.join()
    words = ("engine=ray", f"engine.address={machines.address}")
    running = start(folder, SPACE.replace("0.05", "0.3"), *words)
    try:
        log = folder / "log.txt"
        running.until(lambda: log.exists() and len(log.read_text().split()) > 60)
    finally:
        machines.leave(node)
    assert running.wait() == 0, running.text()
    check_rows(folder)
    assert not LINES_OF_RAY.search(running.text()), running.text()


def test_node_joining_a_running_sweep_is_used(machines: Machines, tmp_path: Path) -> None:
    words = ("engine=ray", f"engine.address={machines.address}")
    running = start(tmp_path, SPACE.replace("0.05", "0.4"), *words)
    log = tmp_path / "log.txt"
    running.until(log.exists)
    node = machines.join()
    try:
        assert running.wait() == 0, running.text()
    finally:
        machines.leave(node)
    assert "engine ray: places for 1 more" in running.text()
    folder = str(tmp_path / "outputs" / "toy" / "results" / "tests.toys.counting-v1")
    parts = [file.name for file in Path(folder).glob("*.parquet")]
    assert len({metadata(folder, part)["by"] for part in parts}) == 2, running.text()
    check_rows(tmp_path)


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
    words = ("engine=ray", f"engine.address={machines.address}")
    running = start(tmp_path, SPACE, *words)
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
        words = ("engine=ray", f"engine.address={machines.address}", "engine.ready_s=20")
        running = start(tmp_path, SPACE.replace("0.05", "0.2"), *words)
        running.until(lambda: (tmp_path / "log.txt").exists())
        kill(machines.nodes.pop())
        assert running.wait(30.0) == 2, running.text()
    assert "the head of the cluster does not answer" in running.text()
    assert start(tmp_path, SPACE.replace("0.05", "0.2"), "engine=inline").wait() == 0
    check_rows(tmp_path)
