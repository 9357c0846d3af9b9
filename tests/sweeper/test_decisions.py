"""Decisions after a front: hypervolume, ranks, sensitivity, probabilities, neighbours, fleets."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.errors import UserError
from sweeper.query.analysis import (
    best_per,
    cheapest,
    idle_axes,
    replicas_for,
    sensitivity,
    steps_from,
)
from sweeper.query.fronts import (
    Matrix,
    crowding_distance,
    distinct_front,
    dominated_shares,
    epsilon_front,
    hypervolume,
    rank_layers,
)
from sweeper.query.uncertainty import probable_front


def _points(seed: int, rows: int, width: int, *, ties: bool = False) -> Matrix:
    drawn = np.random.default_rng(seed).random((rows, width))
    return np.round(drawn, 1) if ties else drawn


def test_hypervolume_is_the_dominated_area() -> None:
    assert hypervolume(np.array([[1.0, 3.0], [2.0, 1.0], [9.0, 0.0]]), [4.0, 4.0]) == 7.0
    assert hypervolume(np.array([[1.0], [3.0]]), [4.0]) == 3.0
    assert hypervolume(np.array([[5.0, np.nan]]), [4.0, 4.0]) == 0.0
    shares = dominated_shares(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 0.5]]))
    assert shares == [0.0, 0.5]
    with pytest.raises(UserError, match="1 values for 2 objectives"):
        hypervolume(np.ones((1, 2)), [4.0])


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 3, 4])
def test_ranks_and_crowding_agree_with_pymoo(width: int) -> None:
    pytest.importorskip("pymoo", reason="comes with the extra `search`")
    from pymoo.operators.survival.rank_and_crowding.metrics import calc_crowding_distance
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    points = _points(width, 300, width, ties=width == 3)
    _, ranks = NonDominatedSorting().do(points, return_rank=True)
    np.testing.assert_array_equal(rank_layers(points), ranks + 1)
    front = points[distinct_front(points)[0]]
    theirs = calc_crowding_distance(front) * width  # pymoo takes the mean over the objectives
    np.testing.assert_allclose(crowding_distance(front), theirs, rtol=1e-9)


def test_equal_designs_have_equal_ranks() -> None:
    points = np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [np.nan, 0.0]])
    assert rank_layers(points).tolist() == [1, 1, 2, 0]
    assert rank_layers(points, 1).tolist() == [1, 1, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.floats(0.01, 0.5))
def test_epsilon_front_covers_the_whole_front(seed: int, width: int, step: float) -> None:
    points = _points(seed, 200, width)
    kept = points[epsilon_front(points, [step] * width)]
    front = points[distinct_front(points)[0]]
    reached = (kept[None] <= front[:, None] + step).all(axis=2)
    assert reached.any(axis=1).all()
    assert len(kept) <= len(front)


def _grid(function: object, values: int) -> pl.DataFrame:
    line = (np.arange(values) + 0.5) / values * 2 * np.pi - np.pi
    a, b, c = (x.ravel() for x in np.meshgrid(line, line, line, indexing="ij"))
    return pl.DataFrame({"a": a, "b": b, "c": c, "y": function(a, b, c)})  # type: ignore[operator]


def _ishigami(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    return np.sin(a) + 7 * np.sin(b) ** 2 + 0.1 * c**4 * np.sin(a)


ISHIGAMI = [0.3139, 0.4424, 0.0]
"""First-order indices of the Ishigami function with the constants above."""


def test_first_order_indices_agree_with_theory() -> None:
    drawn = np.random.default_rng(1).uniform(-np.pi, np.pi, (20_000, 3)).T
    sample = pl.DataFrame(dict(zip("abc", drawn, strict=True)))
    for rows in (_grid(_ishigami, 32), sample.with_columns(y=_ishigami(*drawn))):
        found = sensitivity(rows.lazy(), "y", ["a", "b", "c"])
        ours = dict(found.indices.select("axis", "first_order").rows())
        np.testing.assert_allclose([ours[x] for x in "abc"], ISHIGAMI, atol=0.02)
    assert found.interaction == pytest.approx(0.244, abs=0.04)


@pytest.mark.slow
def test_first_order_indices_agree_with_salib() -> None:
    pytest.importorskip("SALib", reason="comes with the extra `search`")
    from SALib.analyze import sobol
    from SALib.sample import sobol as sobol_sample

    problem = {"num_vars": 3, "names": ["a", "b", "c"], "bounds": [[-np.pi, np.pi]] * 3}
    drawn = sobol_sample.sample(problem, 4096, calc_second_order=False, seed=1)
    theirs = sobol.analyze(problem, _ishigami(*drawn.T), calc_second_order=False, seed=1)["S1"]
    rows = pl.DataFrame(dict(zip("abc", drawn.T, strict=True))).with_columns(y=_ishigami(*drawn.T))
    found = sensitivity(rows.lazy(), "y", ["a", "b", "c"])
    ours = dict(found.indices.select("axis", "first_order").rows())
    np.testing.assert_allclose([ours[x] for x in "abc"], theirs, atol=0.02)


def test_sensitivity_on_a_full_grid_is_exact() -> None:
    rows = _grid(lambda a, b, c: 3 * a + b + 0 * c, 8)
    variance = rows["a"].var(ddof=0)
    found = sensitivity(rows.lazy(), "y", ["a", "b", "c"])
    assert isinstance(variance, float)
    shares = dict(found.indices.select("axis", "first_order").rows())
    assert shares == {"a": pytest.approx(0.9), "b": pytest.approx(0.1), "c": pytest.approx(0)}
    assert found.interaction == pytest.approx(0, abs=1e-12)
    assert idle_axes(rows.lazy(), ["y"], ["a", "b", "c"]) == ["c"]


def test_unknown_columns_are_named() -> None:
    rows = pl.LazyFrame({"a": [1, 2], "y": [1.0, 2.0]})
    with pytest.raises(UserError, match="no column 'b'"):
        sensitivity(rows, "y", ["b"])
    with pytest.raises(UserError, match="no feasible design meets y < 0"):
        cheapest(rows, "y", "y < 0")


def test_front_probability_matches_monte_carlo() -> None:
    rows = pl.LazyFrame({"cost": [1.0, 1.001, 1.5, 4.0], "wait": [1.0, 1.001, 0.9, 4.0]})
    objectives = {"cost": "min", "wait": "min"}
    exact = probable_front(rows, objectives, {})  # type: ignore[arg-type]
    assert exact.select("cost", "p_front").rows() == [(1.0, 1.0), (1.5, 1.0), (1.001, 0.0)] or (
        exact.filter(pl.col("p_front") == 1)["cost"].to_list() == [1.0, 1.5]
    )
    bands = {"cost": 0.2, "wait": 0.2}
    loose = probable_front(rows, objectives, bands)  # type: ignore[arg-type]
    shares = dict(loose.select("cost", "p_front").rows())
    assert 0.2 < shares[1.001] < 0.9
    assert shares.get(4.0, 0.0) < 0.01
    together = probable_front(rows, objectives, bands, shared=1.0)  # type: ignore[arg-type]
    assert dict(together.select("cost", "p_front").rows())[1.001] == 0.0


def test_steps_that_improve_come_first() -> None:
    rows = pl.LazyFrame(
        {
            "tp": [1, 2, 4, 2, 1],
            "gpu": ["a", "a", "a", "b", "b"],
            "cost": [4.0, 3.0, 5.0, 2.0, 9.0],
            "wait": [4.0, 3.0, 2.0, 3.0, 9.0],
        }
    )
    axes = {"tp": [1, 2, 4], "gpu": ["a", "b"]}
    here = {"tp": 2, "gpu": "a", "cost": 3.0, "wait": 3.0}
    steps = steps_from(rows, here, axes, {"cost": "min", "wait": "min"})
    assert steps.select("axis", "to", "dominates").rows() == [
        ("gpu", "b", True),
        ("tp", "1", False),
        ("tp", "4", False),
    ]


def test_fleet_question_returns_the_cheapest_mix() -> None:
    rows = pl.LazyFrame({"usd": [1.0, 2.0, 4.0, 8.0], "qps": [1.0, 3.0, 2.0, 9.0]})
    assert best_per(rows, "usd", "qps", "max", steps=2).rows() == [(2.0, 3.0), (8.0, 9.0)]
    fleet = replicas_for([0.0, 4.0, 8.1], 4.0, spare=2)
    assert fleet.replicas == (3, 3, 5)
    assert fleet.peak == 5
    with pytest.raises(UserError, match="serves no load"):
        replicas_for([1.0], 0.0)
