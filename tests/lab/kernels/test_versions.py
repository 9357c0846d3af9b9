"""Checks told apart by the version of what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from lab.claims.runner import run


def _table(version: str, slower: float, *, metered: bool) -> pa.Table:
    m = np.tile(np.arange(1.0, 65.0), 8)
    n = np.repeat(512.0 * np.arange(1.0, 9.0), 64)
    columns = {
        "gpu": ["h200_sxm"] * m.size,
        "framework": ["vllm"] * m.size,
        "version": [version] * m.size,
        "kernel": ["k"] * m.size,
        "gemm_dtype": ["bfloat16"] * m.size,
        "m": m,
        "n": n,
        "k": np.full(m.size, 4096.0),
        "latency_us": slower * (4.0 + n / 512.0),
    }
    return pa.table(columns | ({"power_w": np.full(m.size, 400.0)} if metered else {}))


def test_drift_is_what_the_same_shapes_take_longer(tmp_path: Path) -> None:
    (tmp_path / "llm_kernels").mkdir()
    for name, version, slower, metered in (
        ("gemm_power", "0.1", 1.0, True),
        ("gemm", "0.2", 1.25, False),
    ):
        table = _table(version, slower, metered=metered)
        pa.parquet.write_table(table, tmp_path / "llm_kernels" / f"{name}.parquet")
    found = {check.name: check for check in run("kernels/versions", tmp_path)}
    drift = found["h200_sxm vllm gemm bf16 drift 0.1 to 0.2"]
    assert drift.value == pytest.approx(25.0)
    assert drift.rows == 512
    assert 0 < found["h200_sxm vllm gemm bf16 0.1 MAPE"].rows < 512


def test_a_folder_without_tables_says_so(tmp_path: Path) -> None:
    for check in run("kernels/versions", tmp_path):
        assert check.value is None
        assert check.note == "no rows"
