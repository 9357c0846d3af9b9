"""Rows written before a simulator gained a field use the default of the field."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from sweeper import DesignSpace
from sweeper.report.run_folder import rows_of
from sweeper.store.keys import define
from sweeper.store.store import Store


def test_field_missing_in_old_rows_has_the_default(tmp_path: Path) -> None:
    space = DesignSpace.of("kernels", op="gemm", gpu="h100_sxm", m=[1, 2], n=8, k=8)

    class Old(Store):
        def scan(self) -> pl.LazyFrame:
            return pl.LazyFrame({"m": [1, 2]}, schema={"m": pl.Int64})

    rows = rows_of(Old(str(tmp_path), define(space)), space).collect()
    assert rows["m"].to_list() == [1, 2]
    assert rows["k"].to_list() == [8, 8]
    assert rows["gpu"].to_list() == ["h100_sxm", "h100_sxm"]
    assert set(space.schema.names) <= set(rows.columns)
