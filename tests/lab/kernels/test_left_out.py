"""Fits foretell models of which they saw no row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.fits.kernels.fused_kernels import left_out, predicted_s
from lab.fits.kernels.kernel_calibration import form
from lab.tables.kernels import (
    EXPERTS,
    models_of,
    octaves_of,
    products_of,
    read_measured,
    timed,
)
from lab.tables.rows import Rows, mape
from simulators.catalog.gpu import load_gpu
from simulators.kernels.families.experts import expert_seconds

MODELS = ((2048.0, 768.0, 8.0, 128.0), (4096.0, 1536.0, 8.0, 128.0), (7168.0, 2048.0, 8.0, 256.0))


@pytest.fixture(scope="module")
def made() -> Rows:
    """Layers of three models with the seconds of the form at the initial parameters."""
    columns = [
        (tokens, *model, tp, ep)
        for model in MODELS
        for tokens in 2.0 ** np.arange(15)
        for tp, ep in ((1.0, 1.0), (2.0, 1.0), (1.0, 8.0))
    ]
    sizes = dict(zip(EXPERTS, np.array(columns).T, strict=True))
    rows = timed(sizes, np.ones(len(columns)), "experts", "bf16", gpu="h100_sxm")
    seconds = sum(
        expert_seconds(s, "bf16", load_gpu("h100_sxm"), form("experts").start)
        for s in products_of(rows)
    )
    return timed(sizes, np.asarray(seconds), "experts", "bf16", gpu="h100_sxm")


def test_a_model_is_left_out_with_all_its_rows_and_foretold_by_the_others(made: Rows) -> None:
    parts = list(left_out(made, models_of))
    assert [len(aside) for aside, _ in parts] == [45, 45, 45]
    assert all(np.unique(aside.sizes["hidden_size"]).size == 1 for aside, _ in parts)
    for aside, entry in parts:
        assert mape(predicted_s(aside, load_gpu("h100_sxm"), entry), aside.seconds) < 0.06


def test_octaves_go_by_tokens(made: Rows) -> None:
    assert octaves_of(made).tolist() == np.log2(made.sizes["num_tokens"]).astype(int).tolist()


def test_rows_of_two_versions_of_a_framework_are_not_mixed(tmp_path: Path) -> None:
    folder = tmp_path / "llm_kernels"
    folder.mkdir()
    count = {"0.5.10": 260, "0.5.14": 300}
    versions = [version for version, rows in count.items() for _ in range(rows)]
    fixed = {
        "gpu": "h100_sxm",
        "framework": "sglang",
        "kernel": "triton",
        "moe_dtype": "bfloat16",
        "distribution": "balanced",
        "hidden_size": 2048,
        "inter_size": 768,
        "topk": 8,
        "num_experts": 128,
        "moe_tp_size": 1,
        "moe_ep_size": 1,
        "latency_us": 100.0,
    }
    columns = {name: [value] * len(versions) for name, value in fixed.items()}
    columns |= {"version": versions, "num_tokens": list(range(1, len(versions) + 1))}
    pq.write_table(pa.table(columns), folder / "moe_sglang.parquet")
    (rows,) = read_measured(tmp_path, "h100_sxm", "experts")
    assert (rows.version, len(rows)) == ("0.5.14", 300)
