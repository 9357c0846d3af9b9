"""Results in an S3-compatible store: rows equal those of a folder; failures give a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.faults.machines import Running, command, rows, start

pytest.importorskip("moto.server", reason="moto, of the extra dev, is not installed")

from tests.faults.object_store import BUCKET, ObjectStore, object_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPACE = "simulator: tests.toys.counting\naxes: {n: 0..199, log: log.txt, pause_s: 0.01}\n"
WORDS = ("engine=inline", f"outputs=s3://{BUCKET}/all")


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


def begin(folder: Path, store: ObjectStore, *words: str) -> Running:
    return start(folder, SPACE, *(words or WORDS), **store.environment)


def answered(folder: Path) -> int:
    log = folder / "log.txt"
    return log.read_text().count("\n") if log.exists() else 0


def ended_in_a_sentence(running: Running, said: str, seconds: float = 60.0) -> None:
    assert running.wait(seconds) == 2, running.text()
    assert said in running.text(), running.text()
    assert "Traceback" not in running.text()
    assert len(running.text().splitlines()) < 12


def test_object_store_rows_equal_folder_rows_and_are_evaluated_once(
    tmp_path: Path, store: ObjectStore
) -> None:
    for words in (
        ("engine=process", WORDS[1]),
        WORDS,
    ):  # the second command finds no remaining points
        assert begin(tmp_path, store, *words).wait() == 0
    assert answered(tmp_path) == 200
    asked = "SELECT * EXCLUDE (log) FROM self ORDER BY n"
    front = command(tmp_path, "verify", "toy", "--outputs", WORDS[1][8:], **store.environment)
    assert front.wait() == 0, front.text()
    assert "200 of 200 rows simulated again: bit-identical" in front.text()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        there = pl.scan_parquet(f"s3://{BUCKET}/all/toy/results/*/*.parquet").collect()
    assert start(tmp_path / "disk", SPACE, WORDS[0]).wait() == 0
    assert_frame_equal(there.sql(asked), rows(tmp_path / "disk").sql(asked), check_exact=True)


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("gone", "cannot be reached"),
        ("403 Forbidden", "ACCESS_DENIED"),
        ("no bucket", "does not exist"),
    ],
)
def test_unwritable_object_store_is_reported_before_evaluation(
    tmp_path: Path, store: ObjectStore, mood: str, said: str
) -> None:
    words = WORDS if mood != "no bucket" else (WORDS[0], "outputs=s3://nowhere/all")
    if mood == "gone":
        store.go()
    store.refuses = mood if mood[0].isdigit() else ""
    ended_in_a_sentence(begin(tmp_path, store, *words), said)
    assert answered(tmp_path) == 0


@pytest.mark.parametrize("mood", ["403 Forbidden", "503 Slow Down"])
def test_parts_written_before_a_store_error_are_kept(
    tmp_path: Path, store: ObjectStore, mood: str
) -> None:
    running = begin(tmp_path, store)
    running.until(lambda: answered(tmp_path) > 8)  # the first part is there
    store.refuses = mood
    ended_in_a_sentence(running, "What it has stored is kept, and the same command continues")
    store.refuses, before = "", answered(tmp_path)
    again = begin(tmp_path, store)
    assert again.wait() == 0, again.text()
    assert answered(tmp_path) - before <= 200 - 8
    assert "200 rows (200 ok)" in again.text()


def test_lost_object_store_ends_the_sweep(tmp_path: Path, store: ObjectStore) -> None:
    running = begin(tmp_path, store)
    running.until(lambda: answered(tmp_path) > 64)
    store.go()
    ended_in_a_sentence(running, "the same command continues")


def test_slow_object_store_gets_larger_parts(tmp_path: Path, store: ObjectStore) -> None:
    store.pause_s = 0.3
    running = begin(tmp_path, store)
    assert running.wait() == 0, running.text()
    assert answered(tmp_path) == 200
    assert store.requests < 80
