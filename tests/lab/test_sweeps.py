"""How runs were cut, by the sweeps they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lab.tables.deployments import SWEEPS, defined_cut
from simulators.workload.llm.parallelism import Parallelism

LOADS = [
    {"tp": 8, "ep": 1, "conc-start": 4, "conc-end": 8},
    {"tp": 8, "ep": 8, "conc-start": 16, "conc-end": 128},
    {"tp": 8, "ep": 8, "dp-attn": True, "conc-start": 256, "conc-end": 256},
    {"tp": 8, "ep": 2, "spec-decoding": "mtp", "conc-start": 4, "conc-end": 512},
]


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """A folder with two snapshots of a sweep: of December as above, of February without experts."""
    definition = {
        "runner": "b200-trt",
        "framework": "trt",
        "precision": "fp4",
        "model": "nvidia/DeepSeek-R1-0528-FP4-V2",
        "multinode": False,
        "disagg": None,
    }
    loads = {"2025-12-15": LOADS, "2026-02-28": LOADS[:1]}
    rows = [
        definition
        | {
            "date": date,
            "search_space": json.dumps([{"isl": 1024, "osl": 1024, "search-space": some}]),
        }
        for date, some in loads.items()
    ]
    (tmp_path / SWEEPS).parent.mkdir()
    pl.DataFrame(rows, schema_overrides={"disagg": pl.Boolean}).write_parquet(tmp_path / SWEEPS)
    return tmp_path


def row(clients: int, date: str = "2025-11-02", output: int = 1024) -> dict[str, Any]:
    return {
        "framework": "trtllm",
        "model": "deepseek-ai/DeepSeek-R1",
        "gpu": "b200_sxm",
        "precision": "fp4",
        "tp_size": 8,
        "isl": 1024,
        "osl": output,
        "concurrency": clients,
        "measured_date": date,
    }


@pytest.mark.parametrize(
    ("clients", "layout"),
    [
        (4, Parallelism(tp=8)),
        (16, Parallelism(tp=8, ep=8)),
        (256, Parallelism(tp=1, ep=8, attention_dp=8)),
    ],
)
def test_a_run_is_cut_as_its_sweep_says(reference: Path, clients: int, layout: Parallelism) -> None:
    assert defined_cut(reference, row(clients)) == layout


def test_the_first_snapshot_from_a_day_on_is_asked(reference: Path) -> None:
    later = row(16, date="2026-01-15")
    assert defined_cut(reference, later) == Parallelism(tp=8)
    assert defined_cut(reference, later, ep=8) == Parallelism(tp=8, ep=8), "of those with its ep"


def test_what_no_sweep_defines_is_not_known(reference: Path, tmp_path: Path) -> None:
    assert defined_cut(reference, row(512)) is None, "lines of its lengths disagree"
    assert defined_cut(reference, row(16, output=8192)) is None
    assert defined_cut(tmp_path / "without", row(16)) is None
