"""Disk, folder and clock faults are reported, and resumed rows equal undisturbed rows."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sweeper.engines.task import Task
from sweeper.report.answers import latest
from sweeper.space.design_space import space_of
from sweeper.space.points import Span
from sweeper.space.space_file import read_space
from sweeper.store.keys import define
from sweeper.store.store import Store
from tests.faults.machines import (
    ENVIRONMENT,
    LONG,
    Running,
    command,
    hurry,
    needs_namespaces,
    rows,
    start,
)

pytestmark = pytest.mark.slow

SPACE = "simulator: tests.toys.counting\naxes: {n: 0..199, log: log.txt, pause_s: 0.01}\n"
INLINE = "engine=inline"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nothing befell."""
    folder = tmp_path_factory.mktemp("quiet")
    assert start(folder, SPACE, INLINE).wait() == 0
    return folder


@pytest.fixture(scope="module")
def quiet(ended: Path) -> pl.DataFrame:
    """Its rows."""
    return rows(ended)


def parts(folder: Path, name: str = "toy") -> list[Path]:
    """Return the parts of a sweep."""
    return sorted((folder / "outputs" / name).glob("results/*/*.parquet"))


def ended_in_a_sentence(running: Running, code: int, said: str) -> None:
    """Check how a command ended: by a code and a sentence."""
    assert running.wait() == code, running.text()
    assert said in running.text(), running.text()
    assert "Traceback" not in running.text()
    assert len(running.text().splitlines()) < 12


def same(folder: Path, quiet: pl.DataFrame, name: str = "toy") -> None:
    """Check that the same command resumes and gives the rows of an undisturbed sweep."""
    running = start(folder, SPACE, INLINE, name=name)
    assert running.wait() == 0, running.text()
    assert_frame_equal(rows(folder, name=name), quiet, check_exact=True)


@needs_namespaces
@pytest.mark.parametrize(
    "engine", [INLINE, "engine=process engine.workers=2", "engine=ray engine.actors=2"]
)
def test_full_disk_ends_the_sweep_and_free_space_resumes_the_sweep(
    tmp_path: Path, quiet: pl.DataFrame, engine: str
) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "toy.yaml").write_text(SPACE)
    kept = tmp_path / "kept"
    sweep = f"{sys.executable} -m sweeper +space=toy plot=false {engine}"
    done = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            f"mount -t tmpfs -o size=28k none outputs && {sweep}; code=$?; "
            f"cp -r outputs {kept}; exit $code",
        ],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert re.search("is full. Everything written|No space left on device", done.stderr)
    assert "Traceback" not in done.stderr
    shutil.copytree(kept, tmp_path / "outputs", dirs_exist_ok=True)
    assert not list((tmp_path / "outputs").rglob("*.tmp"))
    same(tmp_path, quiet)


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limits of files here")
def test_file_size_limit_ends_the_sweep(tmp_path: Path, quiet: pl.DataFrame) -> None:
    limited = f"ulimit -f 2; exec {sys.executable} -m sweeper +space=toy plot=false {INLINE}"
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "toy.yaml").write_text(SPACE)
    done = subprocess.run(
        ["bash", "-c", limited],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    same(tmp_path, quiet)


@needs_namespaces
def test_unwritable_folder_is_reported_before_evaluation(
    tmp_path: Path, ended: Path, quiet: pl.DataFrame
) -> None:
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    other = SPACE.replace("199", "299")
    (tmp_path / "spaces" / "toy.yaml").write_text(other)
    results = {}
    for words in ("+space=toy plot=false", "pareto toy"):
        results[words] = subprocess.run(
            [
                "unshare",
                "-m",
                "sh",
                "-c",
                "mount --bind outputs outputs && mount -o remount,ro,bind outputs && "
                f"{sys.executable} -m sweeper {words}",
            ],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
    refused, asked = results.values()
    assert refused.returncode == 2, refused.stderr
    assert "may not be written (Read-only file system)" in refused.stderr
    assert asked.returncode == 0, asked.stderr
    assert (tmp_path / "log.txt").read_text().count("\n") == 200
    same(tmp_path, quiet)


def test_two_concurrent_drivers_evaluate_each_point_once(tmp_path: Path) -> None:
    first = start(tmp_path, LONG, INLINE)
    first.until(lambda: (tmp_path / "log.txt").exists())
    ended_in_a_sentence(start(tmp_path, LONG, INLINE), 2, "is already running into outputs/toy")
    beside = start(tmp_path, LONG.replace("0..199", "0..99"), INLINE)  # another definition may
    hurry(tmp_path)
    assert first.wait() == 0, first.text()
    assert beside.wait() == 0, beside.text()
    assert len(rows(tmp_path).filter(pl.col("n") >= 100)) == 100
    assert command(tmp_path, "verify", "toy").wait() == 0


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "cut by one": lambda content: content[:-1],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "a bit": lambda content: content[:99] + bytes([content[99] ^ 4]) + content[100:],
    "a bit of the footer": lambda content: content[:-60] + b"\x00" + content[-59:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_part_is_reevaluated(
    tmp_path: Path, ended: Path, quiet: pl.DataFrame, damage: str
) -> None:
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    part = parts(tmp_path)[1]
    part.write_bytes(DAMAGES[damage](part.read_bytes()))
    running = start(tmp_path, SPACE, INLINE)
    assert running.wait() == 0, running.text()
    assert f"{part.name} is damaged" in running.text()
    assert "Traceback" not in running.text()
    found = latest("toy", str(tmp_path / "outputs")).results.collect().sort("n")
    assert_frame_equal(found.select(quiet.columns), quiet, check_exact=True)


@pytest.mark.parametrize(
    ("file", "damage"),
    [("config.json", "truncated"), ("definition.json", "zeros"), ("summary.json", "empty")],
)
def test_damaged_metadata_leaves_results_readable(
    tmp_path: Path, ended: Path, quiet: pl.DataFrame, file: str, damage: str
) -> None:
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    (first,) = (tmp_path / "outputs" / "toy" / "runs").iterdir()
    shutil.copytree(first, first.with_name("000002-2026-01-01T00-00-00Z"))
    last = max((tmp_path / "outputs" / "toy" / "runs").iterdir())
    (last / file).write_bytes(DAMAGES[damage]((last / file).read_bytes()))
    running = command(tmp_path, "pareto", "toy")
    assert running.wait() == 0, running.text()
    assert "Traceback" not in running.text()
    same(tmp_path, quiet)


def test_latest_run_is_found_by_number_in_any_time_zone(
    tmp_path: Path, quiet: pl.DataFrame
) -> None:
    assert start(tmp_path, SPACE, INLINE, TZ="Pacific/Kiritimati").wait() == 0
    later = SPACE.replace("199", "249")
    assert start(tmp_path, later, INLINE, TZ="Pacific/Niue").wait() == 0
    runs = sorted((tmp_path / "outputs" / "toy" / "runs").iterdir())
    assert [run.name[:7] for run in runs] == ["000001-", "000002-"]
    assert runs[0].name[7:] <= runs[1].name[7:]
    assert all(run.name.endswith("Z") for run in runs)
    runs[1].rename(runs[1].with_name("000002-1999-01-01T00-00-00Z"))  # a clock that was set back
    running = command(tmp_path, "verify", "toy", "--rows", "250", TZ="Asia/Kathmandu")
    assert running.wait() == 0, running.text()
    assert "250 of 250 rows simulated again: bit-identical" in running.text()


def test_sweep_resumes_after_the_clock_was_set_back(tmp_path: Path, quiet: pl.DataFrame) -> None:
    slow = start(tmp_path, SPACE, INLINE)
    slow.until(lambda: parts(tmp_path))
    slow.process.kill()
    slow.process.wait()
    (run,) = (tmp_path / "outputs" / "toy" / "runs").iterdir()
    run.rename(run.with_name("000001-2099-01-01T00-00-00Z"))
    later = time.time() + 365 * 86400  # what was written lies in the future of the next run
    for file in (tmp_path / "outputs").rglob("*"):
        os.utime(file, (later, later))
    same(tmp_path, quiet)
    assert latest("toy", str(tmp_path / "outputs")).folder.name.startswith("000002-")
    assert command(tmp_path, "verify", "toy").wait() == 0


def test_sweep_resumes_over_20_000_parts(tmp_path: Path) -> None:
    held = 20_000
    text = "simulator: tests.toys.trouble\naxes: {n: 0..200, raises: -100..-1}\n"
    (tmp_path / "space.yaml").write_text(text)
    space = space_of(read_space(tmp_path / "space.yaml"))
    task = Task(space, Store(str(tmp_path / "outputs" / "toy"), define(space)), {"square": "min"})
    for point in range(held):
        task.answer(Span(point, point + 1))
    assert len(parts(tmp_path)) == held
    resumed = start(tmp_path, text, INLINE)
    assert resumed.wait() == 0, resumed.text()
    assert f"{held:,} designs stored already, 100 to simulate" in resumed.text()
    found = rows(tmp_path)
    assert len(found) == len(found.unique(["n", "raises"])) == held + 100
    assert (found["square"] == found["n"] ** 2).all()


@pytest.mark.parametrize("name", ["it's größe", "-dash", "a" * 200, "a;b 100%"])
def test_space_names_work_or_are_refused_with_a_message(
    tmp_path: Path, quiet: pl.DataFrame, name: str
) -> None:
    folder = tmp_path / f"a {name[:60]} 'folder'"
    running = start(folder, SPACE, INLINE, name=name)
    if running.wait() == 2:
        ended_in_a_sentence(running, 2, "space")
        assert not (folder / "outputs").exists()
        return
    assert running.wait() == 0, running.text()
    assert_frame_equal(rows(folder, name=name), quiet, check_exact=True)
    assert command(folder, "pareto", "--", name).wait() == 0
