"""Processes of a local Ray are killed or stopped during a sweep, which resumes or continues."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import polars as pl
import psutil
import pytest
from polars.testing import assert_frame_equal

from tests.faults.machines import LINES_OF_RAY, Running, kin, rows, start

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300)]

SPACE = "simulator: tests.toys.counting\naxes: {n: 0..199, log: log.txt, pause_s: 0.05}\n"
LONG = SPACE.replace("0.05", "0.2")  # so that the loss is noticed before the sweep is done
RAY = ("engine=ray", "engine.actors=2")
ENDED_S = 30.0  # time after which a sweep that lost Ray must have ended
STOPPED_S = 12.0  # time for which a process is stopped; a check every 5 s meets it


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The rows of an undisturbed sweep."""
    folder = tmp_path_factory.mktemp("quiet")
    assert start(folder, SPACE.replace("0.05", "0.0"), "engine=inline").wait() == 0
    return rows(folder)


def started(folder: Path, *words: str, space: str = SPACE) -> Running:
    """Start a sweep with a local Ray, and return once parts are written."""
    running = start(folder, space, *RAY, *words, MARK=str(folder))
    running.until(lambda: len(list(folder.glob("outputs/toy/results/*/*.parquet"))) > 2)
    return running


def process(folder: Path, name: str) -> psutil.Process:
    """Return a process of the sweep whose name starts so."""
    return next(p for p in kin(str(folder)) if p.name().startswith(name))


def check_same(folder: Path, quiet: pl.DataFrame) -> None:
    """Check that the rows equal those of an undisturbed sweep."""
    columns = ["n", "hashed", "half", "status"]
    assert_frame_equal(rows(folder)[columns], quiet[columns], check_exact=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raylet", "no machine of the cluster is left; written results are kept"),
        ("gcs_server", "the head of the cluster does not answer; written results are kept"),
    ],
)
def test_sweep_ends_soon_after_ray_is_killed_and_resumes(
    tmp_path: Path, quiet: pl.DataFrame, name: str, said: str
) -> None:
    running = started(tmp_path, space=LONG)
    process(tmp_path, name).kill()
    assert running.wait(ENDED_S) == 2, running.text()
    assert said in running.text()
    assert not LINES_OF_RAY.search(running.text()), running.text()
    assert len(rows(tmp_path)) < len(quiet)
    resumed = start(tmp_path, LONG, "engine=process", "engine.workers=2")
    assert resumed.wait() == 0, resumed.text()
    check_same(tmp_path, quiet)


def test_killed_actor_is_replaced(tmp_path: Path, quiet: pl.DataFrame) -> None:
    running = started(tmp_path)
    process(tmp_path, "ray::_Remote").kill()
    assert running.wait() == 0, running.text()
    assert not LINES_OF_RAY.search(running.text()), running.text()
    check_same(tmp_path, quiet)


@pytest.mark.parametrize(
    ("name", "continues"), [("raylet", False), ("gcs_server", True), ("ray::_Remote", True)]
)
def test_sweep_continues_after_a_process_was_stopped(
    tmp_path: Path, quiet: pl.DataFrame, name: str, continues: bool
) -> None:
    running = started(tmp_path, space=LONG if continues else SPACE)
    stopped = process(tmp_path, name)
    stopped.send_signal(signal.SIGSTOP)
    if continues:
        time.sleep(STOPPED_S)
        stopped.send_signal(signal.SIGCONT)
    assert running.wait() == 0, running.text()
    check_same(tmp_path, quiet)


def test_actor_stopped_for_good_is_replaced(tmp_path: Path, quiet: pl.DataFrame) -> None:
    running = started(tmp_path, "failures.timeout_s=5")
    stopped = process(tmp_path, "ray::_Remote")
    stopped.send_signal(signal.SIGSTOP)
    assert running.wait() == 0, running.text()
    check_same(tmp_path, quiet)
    psutil.wait_procs([stopped], timeout=15.0)
    assert not stopped.is_running()
