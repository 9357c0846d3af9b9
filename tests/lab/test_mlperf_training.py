"""Which submissions say enough of how their steps were cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.tables.training import SUMMARY, submissions

ROW: dict[str, Any] = {
    "benchmark": "gpt3",
    "accelerator": "NVIDIA H100-SXM5-80GB",
    "round": "v4.1",
    "submitter": "a",
    "system": "b",
    "n_accelerators": 256.0,
    "global_batch_size": 2048.0,
    "tp": 4,
    "pp": 8,
    "cp": None,
    "vpp": 6,
    "mbs": 2,
    "minibs": None,
    "dp": None,
    "grad_accum": None,
    "config_unique": True,
    "config_gbs_consistent": None,
    "train_step_time_median_s": 18.4,
    "throughput_median": None,
    "time_to_train_min_min": 1.0,
    "config_candidates": None,
    "accelerators_per_node": 8,
}


def read(folder: Path, **changes: Any) -> list[Any]:
    (folder / SUMMARY).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([ROW | changes]), folder / SUMMARY)
    return list(submissions(folder))


def test_a_cut_with_its_micro_batch_leaves_the_data_ranks(tmp_path: Path) -> None:
    [found] = read(tmp_path)
    assert (found.plans.dp[0], found.plans.micro_batches[0], found.plans.chunks[0]) == (8, 128, 6)


@pytest.mark.parametrize(
    "change",
    [{"mbs": None}, {"config_unique": False}, {"global_batch_size": 2049.0}, {"minibs": 7}],
)
def test_what_leaves_the_cut_open_or_contradicts_it_is_left_out(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    assert read(tmp_path, **change) == []


@pytest.mark.parametrize(("logged", "rows"), [(4.0, 1), (2.0, 0)])
def test_a_cut_whose_micro_batches_are_not_those_logged_is_left_out(
    tmp_path: Path, logged: float, rows: int
) -> None:
    stated = {"benchmark": "llama2_70b_lora", "minibs": 4, "mbs": None, "cp": 2, "pp": 1}
    batch = {"n_accelerators": 16.0, "global_batch_size": 8.0, "config_gbs_consistent": True}
    assert len(read(tmp_path, **stated, **batch, grad_accum=logged)) == rows


@pytest.mark.parametrize(("config", "overlaps"), [("8x24_pack.sh", 0), ("pack_clipafter.sh", 1)])
def test_states_of_bert_are_shared_out_inside_a_node(
    tmp_path: Path, config: str, overlaps: int
) -> None:
    stated = {"benchmark": "bert", "minibs": 24, "global_batch_size": 12288.0, "grad_accum": 1.0}
    [found] = read(tmp_path, **stated, config_candidates=config)
    assert (found.plans.shards[0], found.plans.overlaps[0]) == (8, overlaps)
