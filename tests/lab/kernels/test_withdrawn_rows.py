"""Rows that their authors withdrew take no part in fits and claims."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from lab.tables.deployments import SILICON, silicon
from lab.tables.kernels import FUSED, PRODUCERS, TENSOR, read_tensor_rows
from lab.tables.rows import WITHDRAWN, read_frame
from simulators.core.calibration import reference_folder

REFERENCE = reference_folder()
needs_tables = pytest.mark.skipif(REFERENCE is None, reason="the measured tables are not here")

ROWS = {
    "gpu": ["h100_sxm", "h100_sxm", "h100_sxm", "b60", None],
    "framework": ["vllm", "vllm", "trtllm", "vllm", None],
    "version": ["0.24.0", "0.25.0", "0.24.0", "0.20.0", None],
    "gemm_dtype": ["fp8_block", "fp8_block", "fp8_block", "bfloat16", None],
    "m": [1, 2, 3, 4, 5],
}


def test_withdrawn_rows_are_never_read(tmp_path: Path) -> None:
    table = tmp_path / "llm_kernels" / "gemm.parquet"
    table.parent.mkdir()
    pl.DataFrame(ROWS).write_parquet(table)
    assert read_frame(table)["m"].to_list() == [2, 3, 5]
    assert read_frame(table, framework="vllm")["m"].to_list() == [2]
    pl.DataFrame(ROWS).write_parquet(tmp_path / "gemm.parquet")
    assert len(read_frame(tmp_path / "gemm.parquet")) == 5


@needs_tables
def test_every_withdrawal_names_rows_of_its_tables() -> None:
    assert REFERENCE is not None
    for one in WITHDRAWN:
        found = 0
        for name in filter(lambda name: (REFERENCE / name).is_file(), one["tables"]):
            words = pl.scan_parquet(REFERENCE / name).select(pl.col(pl.Categorical).cast(pl.String))
            found += words.filter(pl.sql_expr(one["where"])).select(pl.len()).collect().item()
            assert read_frame(REFERENCE / name).filter(pl.sql_expr(one["where"])).is_empty()
        assert found > 0, one["reason"]


@needs_tables
def test_products_in_blocks_under_vllm_are_those_timed_again() -> None:
    assert REFERENCE is not None
    mine = [
        rows
        for rows in read_tensor_rows(REFERENCE, PRODUCERS)
        if (rows.framework, rows.dtype) == ("vllm", "fp8_block")
    ]
    assert {rows.version for rows in mine} == {"0.25.0"}
    assert {rows.gpu for rows in mine} == {"h100_sxm", "b200_sxm", "gb200"}


def test_no_withdrawn_gpu_is_read() -> None:
    assert "b60" not in (*FUSED.gpus, *TENSOR.gpus)


@needs_tables
def test_runs_with_drafts_and_of_two_pools_are_no_aggregated_deployments() -> None:
    assert REFERENCE is not None
    table = read_frame(REFERENCE / SILICON, mode="disagg")
    resolved = read_frame(REFERENCE / "serving_measured" / "silicon_mtp_resolved.parquet")
    drafting = resolved.filter(pl.col("spec_decode") == "mtp")["twin_of_silicon_id"]
    rows = silicon(REFERENCE)
    assert not {row.name for row in rows} & set(table["id"])
    assert not {row.name for row in rows if not row.excluded} & set(drafting)
