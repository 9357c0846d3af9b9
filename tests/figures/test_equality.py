"""Rows are equal to the last bit for every hash seed, and for one worker and two.

Worker processes evaluate points of every shipped space; rows are stored as Parquet and read back.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from simulators.core.contract import objectives_of
from sweeper.engines import Pool
from sweeper.engines.process import ProcessPool
from sweeper.engines.task import Task
from sweeper.query.scenarios import unpriced
from sweeper.space.design_space import space_of
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import read_space
from sweeper.store.keys import define
from sweeper.store.store import Store
from tests.conftest import ROOT
from tests.figures import allowed_points, loaded

POINTS, SEARCHED = 4, 1
"""Points of a space; fewer where each is a search."""
RUNS = ((0, 1), (1, 2), (2, 2))
"""Seeds of hashes, and how many workers answer under them."""


def digests(workers: int) -> Iterator[str]:
    """Yield one digest per shipped space: every bit of some rows, as workers evaluate them."""
    with tempfile.TemporaryDirectory() as folder, worker_pool(workers) as pool:
        for name, file in spaces().items():
            space = unpriced(space_of(read_space(file)))
            simulator = loaded(space)
            where = allowed_points(space, SEARCHED if space.simulator == "dataflow" else POINTS)
            store = Store(f"{folder}/{name}", define(space))
            task = Task(space, store, objectives_of(simulator))
            batches = [part for part in np.array_split(where, 4) if len(part)]
            for _ in pool.run(task, batches, len(where), lambda _: None):
                pass
            rows = store.scan().collect()
            rows = rows[np.argsort(space.index_of(rows))].select(sorted(rows.columns))
            bits = hashlib.sha256(repr([rows.columns, rows.rows()]).encode()).hexdigest()
            yield f"{name} {len(rows)} {bits}"


@contextmanager
def worker_pool(workers: int) -> Iterator[Pool]:
    """Run a pool of worker processes."""
    pool = ProcessPool(workers)
    try:
        yield pool
    finally:
        pool.shut_down()


def digests_of_process(seed: int, workers: int) -> list[str]:
    """Return `digests` from a process with this hash seed, which its workers inherit."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.figures.test_equality", str(workers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_rows_are_equal_for_any_hash_seed_and_number_of_workers() -> None:
    first, *others = (digests_of_process(seed, workers) for seed, workers in RUNS)
    assert [line.split()[0] for line in first] == list(spaces())
    for other in others:
        assert other == first


if __name__ == "__main__":
    for said in digests(int(sys.argv[1])):
        print(said, flush=True)
