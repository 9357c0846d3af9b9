"""Every shipped space is valid and its first points are evaluated."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from simulators.core.contract import WarmsUp, load_simulator
from sweeper.engines.task import evaluate
from sweeper.space.design_space import DesignSpace, objectives, space_of
from sweeper.space.space_file import about, parse_space, read_space
from tests.conftest import ROOT

FILES = sorted((ROOT / "spaces").glob("*.yaml"))  # scenarios have tests of their own
NAMES = [file.stem for file in FILES]
MOST = 1 << 20
"""Points looked through for one that the constraints allow."""


def built(file: Path) -> DesignSpace:
    return space_of(read_space(file))


def test_shipped_spaces_exist() -> None:
    assert FILES, "spaces/ is empty"
    assert len(set(NAMES)) == len(NAMES), "two spaces have one name"


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_space_file_opens_with_its_question(file: Path) -> None:
    assert about(file).rstrip(".").endswith("?") or "?" in about(file)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_space_has_points_and_objectives(file: Path) -> None:
    space = built(file)
    assert sum(space.removed().values()) < space.size
    wanted = objectives(parse_space(read_space(file)), space)
    assert len(wanted) >= 2, "a front needs two objectives"
    assert len(space.varied) >= 2
    assert built(file) == dataclasses.replace(space), "built twice, it differs"


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_axis_can_be_overridden(file: Path) -> None:
    written = read_space(file, complete=True)
    assert space_of(written).size == built(file).size


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_first_allowed_points_are_evaluated(file: Path) -> None:
    space = built(file)
    simulator = load_simulator(space.simulator)
    if isinstance(simulator, WarmsUp):
        simulator.warm_up()
    where = np.arange(min(len(space), MOST))
    kept = space.kept(where)
    allowed = where if kept is None else where[kept]
    assert len(allowed), f"none of the first {MOST:,} points is allowed"
    results = evaluate(simulator, space.batch(allowed[:2]))
    rows = results.to_pylist()
    assert {row["status"] for row in rows} <= {"ok", "infeasible"}, rows
    for row in rows:
        if row["status"] == "ok" and not row.get("saturated"):
            wanted = objectives(parse_space(read_space(file)), space)
            assert all(row[name] is not None for name in wanted if name in row)
