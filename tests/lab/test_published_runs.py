"""Offline runs as points: what the performance pages say of how they were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.tables.published import OFFLINE_TABLE, offline
from simulators.serving.point import ServingPoint

ROW = {
    "framework_version": "1.0",
    "model": "Qwen3-30B-A3B",
    "gpu": "rtx_pro_6000_server",
    "precision": "fp4",
    "tp_size": 8,
    "pp_size": 1,
    "ep_size": None,
    "attention_dp": False,
    "isl": 1000,
    "osl": 1000,
    "output_tokens_per_s": 1000.0,
}

SESSION: dict[str, Any] = {"model": "LLaMA v3.1 70B", "gpu": "h100_sxm", "precision": "fp8"}


def point_of(tmp_path: Path, **changes: Any) -> ServingPoint:
    table = tmp_path / OFFLINE_TABLE
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


def test_an_iteration_fits_the_longest_prompt(tmp_path: Path) -> None:
    assert point_of(tmp_path, isl=20_000, osl=2000).chunk_size == 20_000
    assert point_of(tmp_path).chunk_size == 8192


@pytest.mark.parametrize(
    ("tp", "lengths", "limits"),
    [
        (1, (128, 128), (2048, 2048)),
        (2, (20_000, 2000), (256, 1024)),  # longer prompts are cut
        (2, (2048, 2048), (2048, 1024)),
        (8, (2048, 2048), (8192, 16_384)),
    ],
)
def test_release_0_14_has_its_limits_from_a_file(
    tmp_path: Path, tp: int, lengths: tuple[int, int], limits: tuple[int, int]
) -> None:
    point = point_of(
        tmp_path, **SESSION, framework_version="0.14.0", tp_size=tp, isl=lengths[0], osl=lengths[1]
    )
    assert (point.max_batch, point.chunk_size) == limits


def test_later_engines_are_built_for_the_requests_that_fit_memory(
    tmp_path: Path,
) -> None:
    # 0.95 (80 GiB - 70.55e9 bytes) in caches of 163,840 bytes a token: 22 requests of 4,096.
    small = point_of(tmp_path, **SESSION, framework_version="0.17", tp_size=1, isl=2048, osl=2048)
    assert (small.max_batch, small.chunk_size) == (64, 2048)
    # Eight GPUs hold 883, with a prompt and an answer as long: 1,766 tokens.
    wide = point_of(tmp_path, **SESSION, framework_version="0.17", tp_size=8, isl=2048, osl=2048)
    assert (wide.max_batch, wide.chunk_size) == (896, 2048)
    today = point_of(tmp_path, **SESSION, framework_version="1.0", tp_size=8, isl=2048, osl=2048)
    assert (today.max_batch, today.chunk_size) == (2048, 8192)
