"""What many tests share: a scratch place to work in, and one local Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Matrices are small here: more threads would mostly wait for each other. numpy reads it once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
settings.register_profile(
    "here", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("here")

EARLY = (
    "faults/test_clusters.py",
    "faults/test_lost_processes.py",
    "faults/test_disks.py",
    "sweeper/test_engines.py",
    "figures/test_equality.py",
    "dataflow/test_search.py",
    "serving/test_loop.py",
    "dataflow/test_access.py",
    "collectives/test_laws.py",
    "questions/test_questions.py",
    "test_spaces.py",
)
"""Files that run first: they take longest, or compile different simulators, one per worker."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {ROOT / "tests" / name: number for number, name in enumerate(EARLY)}
    items.sort(key=lambda item: place.get(item.path, len(EARLY)))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, so that `spaces/` and `outputs/` are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPER_HOME", raising=False)
    monkeypatch.setenv("SWEEPER_TRUST", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A Ray of two CPUs on this machine: starting it takes seconds, so it is started once."""
    import ray

    threads = dict.fromkeys(("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "OMP_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 * 1024 * 1024,
        runtime_env={"env_vars": {**threads, "PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()
