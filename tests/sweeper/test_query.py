"""Pareto fronts: a row is on the front if no other row dominates it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from simulators.core.contract import Direction
from simulators.core.errors import UserError
from sweeper.query import fronts, pareto
from sweeper.query.pareto import (
    knee,
    local_front,
    minimised,
    objective_matrix,
    pareto_front,
    rows_at,
    sampled,
    unstated,
)

Matrix = NDArray[np.float64]


def brute_force(values: Matrix) -> dict[tuple[float, ...], int]:
    """Return each distinct vector on the front with how many rows reach it: all pairs compared."""
    clean = values[~np.isnan(values).any(axis=1)] + 0.0
    no_worse = (clean[:, None, :] <= clean[None, :, :]).all(axis=2)
    better = (clean[:, None, :] < clean[None, :, :]).any(axis=2)
    front = clean[~(no_worse & better).any(axis=0)]
    counted: dict[tuple[float, ...], int] = {}
    for row in front.tolist():
        counted[tuple(row)] = counted.get(tuple(row), 0) + 1
    return counted


def found(values: Matrix) -> dict[tuple[float, ...], int]:
    rows, ties = fronts.distinct_front(values)
    assert (np.diff(rows) > 0).all()
    picked = (values[rows] + 0.0).tolist()
    assert all(not (values[:row] == values[row]).all(axis=1).any() for row in rows), (
        "the first of equal rows represents the group"
    )
    return {tuple(v): int(n) for v, n in zip(picked, ties, strict=True)}


@st.composite
def tables(draw: st.DrawFn, most: int = 60) -> Matrix:
    """Few distinct values, so that ties are the rule; NaN, infinities and both zeros among them."""
    shape = (draw(st.integers(0, most)), draw(st.integers(1, 5)))
    few = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan])
    many = st.floats(-10, 10, width=32)
    values: Matrix = draw(
        arrays.arrays(np.float64, shape, elements=draw(st.sampled_from((few, many))))
    )
    return values


@given(values=tables())
def test_front_of_a_small_table_matches_brute_force(values: Matrix) -> None:
    assert found(values) == brute_force(values)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare tables of five rows with strong rows first, as large tables are."""
    monkeypatch.setattr(fronts, "_LARGE", 4)
    monkeypatch.setattr(fronts, "_SAMPLE", 2)


@given(values=tables())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_front_of_a_large_table_matches_brute_force(large: None, values: Matrix) -> None:
    assert found(values) == brute_force(values)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kind", ["uniform", "correlated", "anticorrelated", "grid"])
def test_front_of_two_thousand_rows_matches_brute_force(
    large: None, columns: int, kind: str
) -> None:
    random = np.random.default_rng(columns)
    values = random.random((2000, columns))
    if kind == "correlated":
        values += 3.0 * random.random((2000, 1))
    if kind == "anticorrelated":
        values /= values.sum(axis=1, keepdims=True)
    if kind == "grid":
        values = np.floor(values * 4.0)
    values[random.random(2000) < 0.01, 0] = np.nan
    assert found(values) == brute_force(values)


@given(values=tables(), data=st.data())
def test_front_is_independent_of_row_order(values: Matrix, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(values))))
    assert found(values[order]) == found(values)


DIRECTIONS = st.lists(st.sampled_from(("min", "max")), min_size=1, max_size=3)


@st.composite
def results(draw: st.DrawFn) -> tuple[pl.DataFrame, dict[str, Direction]]:
    """Rows as a store holds them: some infeasible, some without a value, in two groups."""
    directions: list[Direction] = draw(DIRECTIONS)
    height = draw(st.integers(0, 40))
    value = st.one_of(st.none(), st.just(math.nan), st.integers(-3, 3).map(float))
    names = [f"o{j}" for j in range(len(directions))]
    columns: dict[str, Any] = {
        name: draw(st.lists(value, min_size=height, max_size=height)) for name in names
    }
    statuses = st.sampled_from(("ok", "ok", "ok", "infeasible", "error"))
    columns["status"] = draw(st.lists(statuses, min_size=height, max_size=height))
    groups = st.sampled_from(("a", "b", None))
    columns["group"] = draw(st.lists(groups, min_size=height, max_size=height))
    schema: dict[str, Any] = {
        **dict.fromkeys(names, pl.Float64),
        "status": pl.String,
        "group": pl.String,
    }
    frame = pl.DataFrame(columns, schema=schema).with_row_index("design")
    return frame, dict(zip(names, directions, strict=True))


def expected_front(
    rows: pl.DataFrame, wanted: dict[str, Direction]
) -> set[tuple[tuple[float, ...], int]]:
    signs = np.array([1.0 if d == "min" else -1.0 for d in wanted.values()])
    good = rows.filter(pl.col("status") == "ok").select(list(wanted)).fill_null(math.nan)
    front = brute_force(good.to_numpy().reshape(good.height, len(wanted)) * signs)
    return {(tuple((np.array(v) * signs + 0.0).tolist()), n) for v, n in front.items()}


def as_set(front: pl.DataFrame, wanted: dict[str, Direction]) -> set[tuple[tuple[float, ...], int]]:
    return {
        (tuple(x + 0.0 for x in row[:-1]), row[-1])
        for row in front.select(*wanted, "equivalents").iter_rows()
    }


@given(given_results=results())
def test_pareto_front_matches_brute_force(
    given_results: tuple[pl.DataFrame, dict[str, Direction]],
) -> None:
    rows, wanted = given_results
    front = pareto_front(rows.lazy(), wanted)
    assert as_set(front, wanted) == expected_front(rows, wanted)
    assert front.columns == [*rows.columns, "equivalents"]
    assert rows.join(front, on="design", how="semi").equals(
        front.drop("equivalents").sort("design")
    ), "rows come whole, as they were"
    first, direction = next(iter(wanted.items()))
    assert front[first].is_sorted(descending=direction == "max")


@given(given_results=results(), least=st.integers(-3, 3))
def test_condition_applies_before_the_front(
    given_results: tuple[pl.DataFrame, dict[str, Direction]], least: int
) -> None:
    rows, wanted = given_results
    front = pareto_front(rows.lazy(), wanted, where=f"o0 >= {least} AND design % 2 = 0")
    chosen = rows.filter(pl.col("o0") >= least, pl.col("design") % 2 == 0)
    assert as_set(front, wanted) == expected_front(chosen, wanted)


@given(given_results=results())
def test_each_group_has_one_front(
    given_results: tuple[pl.DataFrame, dict[str, Direction]],
) -> None:
    rows, wanted = given_results
    front = pareto_front(rows.lazy(), wanted, per=["group"])
    for group in ("a", "b", None):
        mine = front.filter(pl.col("group").eq_missing(pl.lit(group)))
        theirs = rows.filter(pl.col("group").eq_missing(pl.lit(group)))
        assert as_set(mine, wanted) == expected_front(theirs, wanted)


@given(given_results=results(), data=st.data())
def test_front_of_part_fronts_equals_the_front(
    given_results: tuple[pl.DataFrame, dict[str, Direction]], data: st.DataObject
) -> None:
    rows, wanted = given_results
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    good = rows.with_columns(
        pl.when(pl.col("status") == "ok").then(pl.col(name)).fill_null(math.nan).alias(name)
        for name in wanted
    )
    edges = itertools.pairwise([0, *cuts, len(rows)])
    parts = [good[lo:hi] for lo, hi in edges]
    local = np.concatenate([local_front(part, wanted) for part in parts])
    front = local_front(dict(zip(wanted, local.T, strict=True)), wanted)
    merged = {tuple((vector + 0.0).tolist()) for vector in front}
    assert merged == {vector for vector, _ in expected_front(rows, wanted)}


def test_integers_and_booleans_can_be_objectives() -> None:
    rows = pl.LazyFrame({"n": [3, 1, 2, 1], "calibrated": [True, False, True, False]})
    front = pareto_front(rows, {"n": "min", "calibrated": "max"})
    assert front.rows() == [(1, False, 2), (2, True, 1)]


def test_status_may_be_categorical() -> None:
    rows = pl.LazyFrame(
        {"a": [1.0, 2.0], "status": pl.Series(["error", "ok"], dtype=pl.Categorical)}
    )
    assert pareto_front(rows, {"a": "min"})["a"].to_list() == [2.0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"objectives": {"cots": "min"}}, "there is no column 'cots'; did you mean 'cost'?"),
        ({"objectives": {"gpu": "min"}}, "objective 'gpu' is not a number"),
        ({"per": ["gpus"]}, "per: there is no column 'gpus'; did you mean 'gpu'?"),
        ({"where": "cots < 3"}, "there is no column 'cots'; did you mean 'cost'?"),
        ({"where": "cost <"}, "is not an SQL expression"),
        ({"where": "gpu > 3"}, "cannot be computed"),
        ({"where": "cost + 1"}, "where 'cost + 1'"),
    ],
)
def test_query_mistake_raises_a_user_error(arguments: dict[str, Any], complaint: str) -> None:
    rows = pl.LazyFrame({"cost": [1.0, 2.0], "gpu": ["a", "b"]})
    with pytest.raises(UserError) as caught:
        pareto_front(rows, **{"objectives": {"cost": "min"}, **arguments})
    assert complaint in str(caught.value)


def test_knee_is_nearest_to_the_ideal_point() -> None:
    front = pl.DataFrame({"cost": [1.0, 2.0, 50.0], "speed": [1.0, 90.0, 100.0]})
    assert knee(front, {"cost": "min", "speed": "max"}) == 1
    assert knee(front[:1], {"cost": "min", "speed": "max"}) == 0
    with pytest.raises(UserError, match="the front is empty"):
        knee(front.clear(), {"cost": "min", "speed": "max"})


@pytest.mark.parametrize("word", ["maximum", "maximise", "MAX", ""])
def test_objective_is_minimised_or_maximised_by_no_other_word(word: Any) -> None:
    rows = pl.LazyFrame({"cost": [1, 2]})
    with pytest.raises(UserError, match=f"objective 'cost': '{word}' is neither min nor max"):
        pareto_front(rows, {"cost": word})


def test_knee_scales_objectives_by_the_front_range() -> None:
    # Of 10 and of 100: shares of 0, .3, 1 and of 1, .4, 0; the squares of the second add to .25.
    front = pl.DataFrame({"a": [0.0, 3.0, 10.0], "b": [100.0, 40.0, 0.0]})
    assert knee(front, {"a": "min", "b": "min"}) == 1


def test_missing_objective_values_are_named() -> None:
    rows = pl.LazyFrame({"a": [1.0, None], "b": [None, 2.0], "status": ["ok", "infeasible"]})
    assert unstated(rows, ["a", "b"]) == ["b"]
    assert unstated(rows, ["a", "b"], where="a > 5") == []


@given(scale=st.floats(1e-6, 1e6), values=st.lists(st.integers(1, 999), min_size=1, max_size=9))
def test_knee_is_independent_of_units(scale: float, values: list[int]) -> None:
    front = pl.DataFrame({"a": sorted(values), "b": sorted(values, reverse=True)}).cast(pl.Float64)
    wanted: dict[str, Direction] = {"a": "min", "b": "min"}
    other = front.with_columns(pl.col("a") * 2.0 ** round(math.log2(scale)))
    chosen = [front.row(knee(f, wanted)) for f in (front, other)]
    low, high = (np.log(front.to_numpy()).min(axis=0), np.log(front.to_numpy()).max(axis=0))
    spread = np.where(high > low, high - low, 1.0)
    distances = [float((((np.log(c) - low) / spread) ** 2).sum()) for c in chosen]
    assert distances[0] == pytest.approx(distances[1], abs=1e-9)


def test_missing_values_become_nan_and_maximized_objectives_are_negated() -> None:
    rows = pl.DataFrame({"a": [1, None], "b": [0.5, math.nan]})
    expected = np.array([[1.0, -0.5], [np.nan, np.nan]])
    assert np.array_equal(minimised(rows, {"a": "min", "b": "max"}), expected, equal_nan=True)


def test_result_batches_are_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pl.LazyFrame({"usd": [5.0, 4.0, 9.0, 2.0, 1.0, 7.0, 1.0], "status": ["ok"] * 7})
    wanted: dict[str, Direction] = {"usd": "min"}
    whole = pareto_front(rows, wanted)
    monkeypatch.setattr(pareto, "_AT_ONCE", 2)
    monkeypatch.setattr(pareto, "_WHOLE_ROWS", 2)
    matrix, numbers = objective_matrix(rows, wanted, where="usd < 9")
    assert matrix[:, 0].tolist() == [5.0, 4.0, 2.0, 1.0, 7.0, 1.0]
    assert numbers.tolist() == [0, 1, 3, 4, 5, 6]
    for pieces in (64, 1):  # read alone, and picked from all rows
        monkeypatch.setattr(pareto, "_FEW_PIECES", pieces)
        found = rows_at(rows, pl.Series([1, 4, 5]))
        assert found.select("__row", "usd").rows() == [(1, 4.0), (4, 1.0), (5, 7.0)]
    assert pareto_front(rows, wanted).equals(whole)
    assert whole["equivalents"].to_list() == [2]


def test_sample_has_one_row_of_each_stretch_and_every_value_of_a_fast_axis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pareto, "_AT_ONCE", 1000)
    rows = pl.LazyFrame({"at": range(9999), "fast": [n % 10 for n in range(9999)]})
    found = pl.concat(sampled(rows, 30))
    assert (found["at"] // 30).to_list() == list(range(334))
    assert found["fast"].n_unique() == 10
    assert pl.concat(sampled(rows, 1)).equals(rows.collect())
