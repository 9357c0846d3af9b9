"""A point that hangs, exits or exhausts memory costs one row; signals end the sweep."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from simulators.core.errors import UserError
from sweeper.engines.ray import check_address
from tests.faults.machines import kin, rows, start

SPACE = "simulator: tests.toys.trouble\naxes: {n: 0..63, hangs: 41, exits: 20, hoards: 7}\n"
HANGING = "simulator: tests.toys.trouble\naxes: {n: 0..63, hangs: 0}\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_default_engine_enforces_time_and_memory_limits(tmp_path: Path) -> None:
    running = start(tmp_path, SPACE, "failures.timeout_s=6", "failures.memory_gb=2")
    assert running.wait(300) == 3, running.text()
    found = rows(tmp_path)
    assert found["n"].to_list() == list(range(64))
    bad = found.filter(found["status"] != "ok")
    assert dict(zip(bad["n"], bad["status"], strict=True)) == {
        7: "error",
        20: "crash",
        41: "timeout",
    }
    assert "Traceback" not in running.text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_a_sweep_without_orphan_processes(tmp_path: Path, number: int) -> None:
    running = start(tmp_path, HANGING, MARK=str(tmp_path))
    running.until(lambda: len(kin(str(tmp_path))) > 1)
    running.process.send_signal(number)
    assert running.wait(30) == 128 + number
    assert "stopped; results so far are kept" in running.text()
    assert "Traceback" not in running.text()
    time.sleep(1.0)
    assert kin(str(tmp_path)) == []


@pytest.mark.slow
def test_workers_exit_with_a_killed_driver(tmp_path: Path) -> None:
    running = start(tmp_path, HANGING, MARK=str(tmp_path))
    running.until(lambda: len(kin(str(tmp_path))) > 1)
    running.process.kill()
    running.process.wait()
    end = time.monotonic() + 10.0
    while kin(str(tmp_path)):
        assert time.monotonic() < end


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "nowhere.invalid:6379", "ray://127.0.0.1:1", "here"]
)
def test_unreachable_address_is_refused_immediately(address: str) -> None:
    with pytest.raises(UserError, match=r"engine\.address="):
        check_address(address)
