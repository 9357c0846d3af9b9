"""Processes of a local Ray are killed or stopped during a sweep, which resumes or continues."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import polars as pl
import psutil
import pytest
from polars.testing import assert_frame_equal

from tests.faults.machines import (
    LINES_OF_RAY,
    LONG,
    STOPPED_S,
    Running,
    hurry,
    kin,
    rows,
    start,
    until_parts,
)

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300)]

RAY = ("engine=ray", "engine.actors=2")
ENDED_S = 30.0  # time after which a sweep that lost Ray must have ended


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The rows of an undisturbed sweep."""
    folder = tmp_path_factory.mktemp("quiet")
    hurry(folder)
    assert start(folder, LONG, "engine=inline").wait() == 0
    return rows(folder)


def started(folder: Path) -> Running:
    """Start a sweep with a local Ray, and return once parts are written."""
    running = start(folder, LONG, *RAY, MARK=str(folder))
    until_parts(running, folder)
    return running


def process(folder: Path, name: str) -> psutil.Process:
    """Return a process of the sweep whose name starts so."""
    return next(p for p in kin(str(folder)) if p.name().startswith(name))


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
    running = started(tmp_path)
    process(tmp_path, name).kill()
    assert running.wait(ENDED_S) == 2, running.text()
    assert said in running.text()
    assert not LINES_OF_RAY.search(running.text()), running.text()
    assert len(rows(tmp_path)) < len(quiet)
    hurry(tmp_path)
    resumed = start(tmp_path, LONG, "engine=process", "engine.workers=2")
    assert resumed.wait() == 0, resumed.text()
    assert_frame_equal(rows(tmp_path), quiet, check_exact=True)


@pytest.mark.parametrize(("name", "continues"), [("raylet", False), ("gcs_server", True)])
def test_sweep_continues_after_a_process_was_stopped(
    tmp_path: Path, quiet: pl.DataFrame, name: str, continues: bool
) -> None:
    running = started(tmp_path)
    stopped = process(tmp_path, name)
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    if continues:
        stopped.send_signal(signal.SIGCONT)
    hurry(tmp_path)
    assert running.wait() == 0, running.text()
    assert_frame_equal(rows(tmp_path), quiet, check_exact=True)
