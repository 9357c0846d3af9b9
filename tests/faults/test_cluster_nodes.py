"""Ray refuses cluster nodes that would mix or lose rows. A separate file runs in its own worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from tests.faults.machines import (
    LINES_OF_RAY,
    SPACE,
    Machines,
    mount,
    needs_namespaces,
    rows,
    start,
)

pytestmark = [pytest.mark.slow, pytest.mark.ray, needs_namespaces, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("storage", "does not arrive here; share that folder"),
        ("read-only", "may not be written"),
        ("folder", "No such file or directory"),
        ("other code", "digest of sources and facts is"),
        ("no code", "No module named 'sweeper|digest of sources"),
    ],
)
def test_node_with_a_different_environment_is_refused_by_name(
    machines: Machines, tmp_path: Path, kind: str, said: str
) -> None:
    folder = tmp_path / "shared" / "work"
    (folder / "outputs").mkdir(parents=True)
    node = machines.join(*mount(kind, folder, tmp_path))
    words = ("engine=ray", f"engine.address={machines.address}")
    try:
        running = start(folder, SPACE, *words)
        assert running.wait() == 0, running.text()
    finally:
        machines.leave(node)
    log = running.text()
    refused = next(line for line in log.splitlines() if "refused actor-" in line)
    assert re.search(said, refused)
    assert "engine ray: 1 worker in" in log
    assert not LINES_OF_RAY.search(log), log
    assert rows(folder)["n"].to_list() == list(range(200))
    assert not list((folder / "outputs").rglob(".token-*"))
    alone = tmp_path / "alone"
    assert start(alone, SPACE, "engine=inline").wait() == 0
    assert_frame_equal(rows(folder), rows(alone), check_exact=True)
