"""Two fidelities: all points at the first, and the front at the second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from simulators.core.errors import UserError
from sweeper.samplers import Goal
from sweeper.samplers._axis_searches import refined_search
from sweeper.space.design_space import space_of
from sweeper.space.space_file import parse_space
from sweeper.sweep import Sweep

# Cost is n * (x - 3)^2: x = 2 is dearer than 3 and gains less.
WRITTEN: dict[str, Any] = {
    "simulator": "tests.toys.quadratic",
    "axes": {"n": [1, 4], "label": "first plain then plainer", "x": [2.0, 3.0, 5.0]},
}
WANTED = Goal({"cost_usd": "min", "x": "max"}, "label = 'plainer'", ("n",))


@pytest.mark.parametrize("first", ["n", "label"])  # in the middle of a space, and its outermost
def test_front_of_the_first_fidelity_is_evaluated_at_the_second(tmp_path: Path, first: str) -> None:
    axes = {
        name: WRITTEN["axes"][name] for name in sorted(WRITTEN["axes"], key=lambda n: n != first)
    }
    written = WRITTEN | {"axes": axes}
    space = space_of(written)
    sampler = refined_search(parse_space(written), space, WANTED)
    assert sampler is not None
    sweep = Sweep.of(
        space,
        outputs=str(tmp_path / "rows"),
        engine="inline",
        sampler=sampler,
        objectives=dict(WANTED.objectives),
        where=WANTED.where,
    )
    rows = sweep.run().collect()
    cheap = rows.filter(pl.col("label").cast(pl.String) == "plain")
    dear = rows.filter(pl.col("label").cast(pl.String) == "plainer")
    assert len(cheap) == 6
    assert sorted(dear.select("n", "x").iter_rows()) == [(1, 3.0), (1, 5.0), (4, 3.0), (4, 5.0)]


def test_removed_points_are_not_expected() -> None:
    space = space_of(WRITTEN | {"constraints": ["x > 2"]})
    sampler = refined_search(parse_space(WRITTEN), space, WANTED)
    assert sampler is not None
    assert sampler.size(space) == 4


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"axes": WRITTEN["axes"] | {"status_note": "first a then b"}}, "status_note"),
        ({"zip": [["n", "label"]]}, "is zipped with others"),
    ],
)
def test_mistakes_are_explained(change: dict[str, Any], fragment: str) -> None:
    written = WRITTEN | change
    with pytest.raises(UserError, match=fragment):
        refined_search(parse_space(written), space_of(written), WANTED)
