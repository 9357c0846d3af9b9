"""Results are the same bits whatever seed Python hashes strings with, by one worker and by two.

Points of every shipped space are answered by workers that can be killed, as a sweep's are, kept in
a store and read back; a list counts by all its values.
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
from sweeper.engines.child_process import ProcessFactory
from sweeper.engines.pool import WorkerPool
from sweeper.engines.task import Task
from sweeper.query.repricing import unpriced
from sweeper.space.design_space import space_of
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import read_space
from sweeper.store.keys import define
from sweeper.store.store import Store
from tests.conftest import ROOT
from tests.golden import allowed, simulator_of

POINTS, SEARCHED = 4, 1
"""Points of a space; fewer where each is a search."""
RUNS = ((0, 1), (1, 2), (2, 2))
"""Seeds of hashes, and how many workers answer under them."""


def digests(workers: int) -> Iterator[str]:
    """Yield of each shipped space a digest of every bit of some points, as workers answer them."""
    with tempfile.TemporaryDirectory() as folder, team(workers) as pool:
        for name, file in spaces().items():
            space = unpriced(space_of(read_space(file)))
            simulator = simulator_of(space)
            where = allowed(space, SEARCHED if space.simulator == "dataflow" else POINTS)
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
def team(workers: int) -> Iterator[Pool]:
    """Lead so many workers."""
    pool = WorkerPool(ProcessFactory(), wanted=workers)
    try:
        yield pool
    finally:
        pool.shut_down()


def told(seed: int, workers: int) -> list[str]:
    """Return what `digests` yields in a process with a seed of hashes, which workers inherit."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.test_hash_seeds", str(workers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_results_do_not_change_with_the_seed_of_hashes_or_the_number_of_workers() -> None:
    first, *others = (told(seed, workers) for seed, workers in RUNS)
    assert [line.split()[0] for line in first] == list(spaces())
    for other in others:
        assert other == first


if __name__ == "__main__":
    for said in digests(int(sys.argv[1])):
        print(said, flush=True)
