"""Rows from before a simulator gained a field are asked about as if it stood at its default."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from sweeper import DesignSpace
from sweeper.report.run_folder import rows_of
from sweeper.store.keys import define
from sweeper.store.store import Store


def test_a_field_that_rows_lack_is_at_its_default(tmp_path: Path) -> None:
    space = DesignSpace.of("kernels", op="gemm", gpu="h100_sxm", m=[1, 2], n=8, k=8)

    class Old(Store):
        def scan(self) -> pl.LazyFrame:
            return pl.LazyFrame({"m": [1, 2]}, schema={"m": pl.Int64})

    rows = rows_of(Old(str(tmp_path), define(space)), space).collect()
    assert rows["m"].to_list() == [1, 2]
    assert rows["k"].to_list() == [8, 8]
    assert rows["gpu"].to_list() == ["h100_sxm", "h100_sxm"]
    assert set(space.schema.names) <= set(rows.columns)
