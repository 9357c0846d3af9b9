"""Concatenated tables of scenarios."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl

from sweeper.report.answers import stacked


def answers(**axes: Any) -> Any:
    return SimpleNamespace(space=SimpleNamespace(axes=axes))


def test_constant_axis_fills_the_column_of_a_varying_axis() -> None:
    one = answers(copies=[0])
    many = answers(copies=[0, 32])
    table = stacked(
        [
            (one, pl.DataFrame({"qps": [1.0]})),
            (many, pl.DataFrame({"copies": [0, 32], "qps": [2.0, 3.0]})),
        ]
    )
    assert table.to_dict(as_series=False) == {"qps": [1.0, 2.0, 3.0], "copies": [0, 0, 32]}


def test_non_axis_column_is_unknown() -> None:
    table = stacked(
        [
            (answers(), pl.DataFrame({"a": [1]})),
            (answers(), pl.DataFrame({"a": [2], "b": [3.0]})),
        ]
    )
    assert table["b"].to_list() == [None, 3.0]
