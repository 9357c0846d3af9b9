"""Fronts of small tables, computed by each algorithm for large tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sweeper.query import fronts
from sweeper.query.fronts import distinct_front, dominated, group_fronts, rank_layers

Matrix = NDArray[np.float64]
NAN = math.nan


def dominates(one: Matrix, other: Matrix) -> bool:
    """Say whether a row is no worse anywhere and better somewhere; comparisons with NaN fail."""
    return bool((one <= other).all() and (one < other).any())


def table(seed: int) -> Matrix:
    """Return some rows of few values, so that many tie, now and then one without a value."""
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 5, (draw.integers(1, 40), draw.integers(1, 5))).astype(float)
    values[draw.random(len(values)) < 0.1, 0] = NAN
    return values


def small_sizes(monkeypatch: pytest.MonkeyPatch, **sizes: object) -> None:
    """Let tables count as large when they have more rows than these."""
    for name, size in sizes.items():
        monkeypatch.setattr(fronts, f"_{name}", size)


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"LARGE": 4, "SAMPLE": 2, "STRONG": 1},  # after a comparison with strong rows
        {"LARGE": 9, "SAMPLE": 4, "STRONG": 2},
    ],
)
@pytest.mark.parametrize("seed", range(25))
def test_front_rows_are_nondominated_and_other_rows_are_dominated(
    seed: int, sizes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_sizes(monkeypatch, **sizes)
    values = table(seed)
    whole = [i for i, row in enumerate(values) if not np.isnan(row).any()]
    best = [i for i in whole if not any(dominates(values[j], values[i]) for j in whole)]
    firsts = [i for i in best if not any((values[j] == values[i]).all() for j in best if j < i)]
    rows, ties = distinct_front(values)
    assert rows.tolist() == firsts
    assert ties.tolist() == [
        sum(bool((values[j] == values[i]).all()) for j in best) for i in firsts
    ]


@pytest.mark.parametrize("seed", range(25))
def test_first_layers_of_a_large_table_are_those_of_all_layers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = table(seed)
    whole = rank_layers(values)
    small_sizes(monkeypatch, LARGE=4, SAMPLE=2)
    for layers in (1, 2, 3):
        assert rank_layers(values, layers).tolist() == np.where(whole > layers, 0, whole).tolist()


def test_dominated_rows_are_marked() -> None:
    members = np.array([[1.0, 4.0], [3.0, 2.0]])
    values = np.array(
        [[1.0, 4.0], [1.0, 5.0], [2.0, 4.0], [3.0, 2.0], [4.0, 3.0], [2.0, 3.0], [0.0, 9.0]]
    )
    assert dominated(values, members).tolist() == [
        False,
        True,
        True,
        False,
        True,
        False,
        False,
    ]


def test_dominating_row_replaces_all_dominated_rows() -> None:
    values = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [2.0, 0.0], [2.0, 0.0]])
    rows, ties = distinct_front(values)
    assert (rows.tolist(), ties.tolist()) == ([2, 3], [1, 2])


@pytest.mark.parametrize("sizes", [{}, {"LARGE": 3, "SAMPLE": 2, "STRONG": 1}])
def test_each_group_has_a_separate_front(
    sizes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_sizes(monkeypatch, **sizes)
    rows_of = [
        (7, [2.0, 1.0]),
        (3, [4.0, 4.0]),
        (7, [1.0, 2.0]),
        (3, [5.0, 5.0]),
        (7, [2.0, 2.0]),
        (7, [1.0, 2.0]),
        (5, [NAN, 0.0]),
        (9, [1.0, 1.0]),
        (9, [0.0, 9.0]),
        (9, [0.0, 10.0]),
    ]
    values, groups = np.array([row for _, row in rows_of]), np.array([g for g, _ in rows_of])
    rows, ties = group_fronts(values, groups)
    assert (rows.tolist(), ties.tolist()) == ([0, 1, 2, 7, 8], [1, 1, 2, 1, 1])


def test_empty_table_has_no_front() -> None:
    rows, ties = group_fronts(np.empty((0, 2)), np.empty(0, np.int64))
    assert (rows.tolist(), ties.tolist()) == ([], [])
