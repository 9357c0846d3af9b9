"""Samplers: coverage, number of points and reproducibility."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import polars as pl
import pytest

from simulators.core.errors import UnknownNameError, UserError
from sweeper.samplers import load_sampler, names
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from tests.toys import QUADRATIC, space


def picked(asked: DesignSpace, name: str, **options: Any) -> list[int]:
    """Return the numbers a sampler picks, in the order in which it sends them."""
    found: list[int] = []
    for round_ in load_sampler(name, **options).rounds(asked, pl.LazyFrame):
        for batch in round_:
            found += (batch.index() if isinstance(batch, Span) else batch).tolist()
    return found


def cube(**more: Any) -> DesignSpace:
    return space(QUADRATIC, {"x": "1..16", "y": "1..16", "n": "1..16"}, **more)


def test_grid_sampler_lists_every_point_in_order() -> None:
    assert picked(cube(), "grid") == list(range(16**3))


def test_sobol_sample_covers_axis_values_evenly() -> None:
    points = cube().points(np.array(picked(cube(), "sobol", points=256), np.int64))
    for name in ("x", "y", "n"):
        assert set(points[name].value_counts()["count"]) == {16}


@pytest.mark.parametrize("name", ["random", "sobol"])
def test_sample_has_the_requested_number_of_allowed_points(name: str) -> None:
    asked = cube(constraints=["x + y + n < 20"])
    found = picked(asked, name, points=100, seed=5)
    assert len(set(found)) == 100
    assert asked.kept(np.array(found, np.int64)) is None


@pytest.mark.parametrize("name", ["random", "sobol"])
@pytest.mark.parametrize("points", [4096, 10_000])
def test_sample_larger_than_the_space_equals_the_space(name: str, points: int) -> None:
    asked = cube(constraints=["n <> 3"])
    allowed = np.flatnonzero(asked.kept(Span(0, len(asked))))
    assert sorted(picked(asked, name, points=points)) == allowed.tolist()


@pytest.mark.parametrize("name", ["random", "sobol"])
def test_different_seeds_differ_and_equal_seeds_agree(name: str) -> None:
    first, again, other = (picked(cube(), name, points=64, seed=s) for s in (1, 1, 2))
    assert first == again
    assert set(first) != set(other)


def test_sobol_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats.qmc", None)
    with pytest.raises(UserError, match=r'pip install "mlsweeper\[search\]"'):
        picked(cube(), "sobol")


def test_random_sample_is_uniform() -> None:
    """Chi-squared over 16 values of an axis: 15 degrees of freedom, 37.7 at 0.1 %."""
    points = cube().points(np.array(picked(cube(), "random", points=800), np.int64))
    for name in ("x", "y", "n"):
        counts = points[name].value_counts()["count"].to_numpy()
        assert ((counts - 50.0) ** 2 / 50.0).sum() < 37.7


@pytest.mark.parametrize("name", ["random", "sobol"])
def test_space_of_a_trillion_points_is_sampled_quickly(name: str) -> None:
    wide = dict.fromkeys(("x", "y", "n"), "1..10000")
    found = picked(space(QUADRATIC, wide), name, points=500)
    assert len(set(found)) == 500
    assert max(found) > 9 * 10**11


def test_one_point_can_be_sampled() -> None:
    assert picked(space(QUADRATIC, {"x": 3}), "sobol", points=4) == [0]


@pytest.mark.parametrize("name", ["random", "sobol"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"points": 0}, "sampler.points=0"), ({"points": -5}, "at least one"), ({"seed": -1}, "seed")],
)
def test_invalid_sampler_options_raise_a_user_error(
    name: str, options: dict[str, int], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        load_sampler(name, **options)


def test_unknown_sampler_lists_similar_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sobol'"):
        load_sampler("sobel")
    assert {"grid", "random", "sobol"} <= set(names())
