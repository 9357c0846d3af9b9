"""A killed sweep resumes and gives the same rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.conftest import ROOT

POINTS = 400
SPACE = f"""\
simulator: tests.toys.counting
axes: {{n: 0..{POINTS - 1}, log: log.txt, pause_s: 0.01}}
constraints: ["n % 50 <> 7"]
"""
ROWS = POINTS - 8


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "spaces").mkdir(exist_ok=True)
    (folder / "spaces" / "count.yaml").write_text(SPACE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "output.txt").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sweeper", "+space=count", "plot=false", *words],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )


def evaluated(folder: Path) -> list[int]:
    log = folder / "log.txt"
    return [int(n) for n in log.read_text().split()] if log.exists() else []


def rows(folder: Path) -> pl.DataFrame:
    """Read the files as anybody would, without the store."""
    found = pl.scan_parquet(f"{folder}/outputs/count/results/*/*.parquet", glob=True)
    return found.collect().sort("n")


def kill_once(folder: Path, running: subprocess.Popen[str], points: int) -> None:
    """Send SIGKILL as soon as that many evaluations have started, counting earlier runs."""
    patience = time.monotonic() + 120.0
    while len(evaluated(folder)) < points:
        assert running.poll() is None, (folder / "output.txt").read_text()
        assert time.monotonic() < patience
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The rows of a run that nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder, "engine=inline").wait(timeout=120) == 0
    assert sorted(evaluated(folder)) == sorted(set(evaluated(folder)))
    return rows(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (("engine=inline",), 1),
        (("engine=inline", "sampler=random", f"sampler.points={POINTS}"), 1),
        pytest.param(("engine=ray", "engine.actors=2"), 2, marks=pytest.mark.ray),
    ],
    ids=["inline", "random", "ray"],
)
def test_sweep_killed_three_times_gives_undisturbed_rows(
    tmp_path: Path, undisturbed: pl.DataFrame, words: tuple[str, ...], workers: int
) -> None:
    for points in (1, 150, 330):
        kill_once(tmp_path, start(tmp_path, *words), points)
    assert start(tmp_path, *words).wait(timeout=300) == 0, (tmp_path / "output.txt").read_text()
    found = rows(tmp_path)
    assert found.height == found["n"].n_unique() == ROWS
    assert_frame_equal(found, undisturbed, check_exact=True)
    # A flush is about a second of points that take ten milliseconds each.
    repeated = len(evaluated(tmp_path)) - ROWS
    assert repeated <= 3 * workers * 110
    assert max(Counter(evaluated(tmp_path)).values()) <= 4


@pytest.mark.slow
def test_finished_sweep_evaluates_no_point_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    for _ in range(2):
        assert start(tmp_path, "engine=inline").wait(timeout=120) == 0
    assert len(evaluated(tmp_path)) == ROWS
    parts = tmp_path / "outputs" / "count" / "results"
    assert not [f for f in parts.rglob("*") if f.is_file() and f.suffix != ".parquet"]


@pytest.mark.slow
@pytest.mark.ray
def test_more_actors_than_cores_are_allowed_locally(tmp_path: Path) -> None:
    many = (os.cpu_count() or 1) + 1
    assert start(tmp_path, "engine=ray", f"engine.actors={many}").wait(timeout=300) == 0
    log = (tmp_path / "output.txt").read_text()
    assert f"engine ray: {many} workers in" in log
    assert rows(tmp_path).height == ROWS
