"""Offline runs as points: what the performance pages say of how they were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lab.tables.published_runs import OFFLINE, offline
from simulators.serving.point import ServingPoint

ROW = {
    "framework_version": "1.0", "model": "Qwen3-30B-A3B", "gpu": "rtx_pro_6000_server",
    "precision": "fp4", "tp_size": 8, "pp_size": 1, "ep_size": None, "attention_dp": False,
    "isl": 1000, "osl": 1000, "output_tokens_per_s": 1000.0,
}  # fmt: skip


def point_of(tmp_path: Path, **changes: Any) -> ServingPoint:
    table = tmp_path / OFFLINE
    table.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([ROW | changes]), table)
    [one] = offline(tmp_path)
    return one.point


def test_gpus_attend_apart_in_mixtures_of_later_releases(tmp_path: Path) -> None:
    point = point_of(tmp_path)
    assert (point.tp, point.attention_dp, point.ep) == (1, 8, 8)
    dense = point_of(tmp_path, model="Llama 3.3 70B")
    earlier = point_of(
        tmp_path, model="Mixtral 8x7B", gpu="h100_sxm", precision="fp8", framework_version="0.17"
    )
    for other in (dense, earlier):
        assert (other.tp, other.attention_dp, other.ep) == (8, 1, 1)


def test_releases_before_pytorch_have_the_runtime_of_static_batches(tmp_path: Path) -> None:
    runtimes = [point_of(tmp_path, framework_version=v).runtime for v in ("0.17", "1.x")]
    assert runtimes == ["trtllm_session", "trtllm_cutlass"]


def test_gpt_oss_is_multiplied_in_what_a_gpu_has(tmp_path: Path) -> None:
    changes = {"model": "GPT-OSS 20B", "tp_size": 1}
    blackwell = point_of(tmp_path, **changes, gpu="b200_sxm")
    hopper = point_of(tmp_path, **changes, gpu="h100_sxm", precision="fp8")
    assert (blackwell.dtype, blackwell.kv_dtype) == ("bf16+w4a8", "fp8")
    assert (hopper.dtype, hopper.kv_dtype) == ("bf16+w4a16", "bf16")


def test_an_iteration_has_room_for_the_longest_prompt(tmp_path: Path) -> None:
    assert point_of(tmp_path, isl=20_000, osl=2000).chunk_size == 20_000
    assert point_of(tmp_path).chunk_size == 8192
