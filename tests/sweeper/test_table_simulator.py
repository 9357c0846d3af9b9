"""The table simulator returns its rows exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from simulators.core.errors import UserError
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Span
from sweeper.sweep import Sweep
from sweeper.tables import table_simulator
from tests.contracts import check_simulator


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Times of products on two devices: work over rate, plus a start."""
    size, device = np.meshgrid([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], ["a", "b"])
    rate = np.where(device == "a", 1.0, 4.0)
    pl.DataFrame(
        {"device": device.ravel(), "size-n": size.ravel(), "time-s": (size / rate + 0.5).ravel()}
    ).write_csv(tmp_path / "products.csv")
    return tmp_path / "products.csv"


def test_table_simulator_returns_its_rows_and_rejects_other_designs(
    rows: Path, tmp_path: Path
) -> None:
    table = table_simulator("products", rows, ["device", "size_n"], {"time_s": "min"})
    asked = DesignSpace.of(table, device=["a", "b"], size_n=[4.0, 5.0])
    found = Sweep.of(asked, outputs=str(tmp_path / "out")).run().sort("device", "size_n").collect()
    assert found["time_s"].to_list() == [4.5, None, 1.5, None]
    assert found["reason"].to_list() == [None, "not_in_the_table"] * 2


def test_missing_table_column_is_named(rows: Path) -> None:
    with pytest.raises(UserError, match="no column 'speed', but device"):
        table_simulator("none", rows, ["device"], {"speed": "max"})


def test_table_with_duplicate_designs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.csv"
    file.write_text("n,t\n1,2.0\n1,3.0\n")
    with pytest.raises(UserError, match="two rows for one design, n=1: t differs"):
        table_simulator("bad", file, ["n"], {"t": "min"})


def test_csv_table_loads_as_a_simulator(rows: Path) -> None:
    table = table_simulator("contract", rows, ["device", "size_n"], {"time_s": "min"})
    check_simulator(table, DesignSpace.of(table, device=["a", "c"], size_n=8.0).batch(Span(0, 2)))
