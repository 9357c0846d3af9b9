"""Sparse attention with an index: list lengths, head tiles and dense short prefills."""

from __future__ import annotations

import pytest

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step, prefill_step


def a_replica(
    runtime: str,
    tp: int = 8,
    *,
    model: str = "deepseek_v3_2",
    gpu: str = "h200_sxm",
    kv_dtype: str = "bf16",
) -> Replica:
    card = load_gpu(gpu)
    return Replica(
        model=load_model(model),
        gpu=card,
        cluster=cluster_for("auto", card),
        layout=Parallelism(tp=tp),
        dtype="fp8_block",
        kv_dtype=kv_dtype,
        runtime=load_runtime(runtime),
    )


def test_sparse_attention_time_is_constant_up_to_the_list_length() -> None:
    # Only the indexer, which scores every key, sees that there are more.
    replica = a_replica("vllm")
    seconds = [
        {row.operator.name: float(row.seconds) for row in iteration(replica, step).rows}
        for step in (decode_step(64.0, 300.0), decode_step(64.0, 2048.0))
    ]
    assert seconds[0]["decode_attention"] == seconds[1]["decode_attention"]
    assert seconds[0]["index_scores"] < seconds[1]["index_scores"]


def test_ranks_with_few_heads_compute_a_whole_tile() -> None:
    # vllm-project/recipes, pull request 234: 16 heads a rank are filled up to 64.
    narrow, whole, wide = (
        sum(
            float(row.seconds)
            for row in iteration(a_replica("vllm", tp), decode_step(512.0, 8192.0)).rows
            if row.operator.name == "decode_attention"
        )
        for tp in (8, 2, 1)
    )
    assert narrow == whole < wide


def test_engine_with_dense_short_prefill_is_faster() -> None:
    short, long = prefill_step(40.0, 200.0), prefill_step(2.0, 4000.0)
    sglang, vllm = (
        [float(iteration(a_replica(name), step).prefill_attention_s) for step in (short, long)]
        for name in ("sglang", "vllm")
    )
    assert sglang[0] < vllm[0] / 10.0
    assert sglang[1] == pytest.approx(vllm[1], rel=0.25)


@pytest.mark.parametrize("model", ["deepseek_v4_pro", "deepseek_v3_2", "glm_5_2", "minimax_m3"])
@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "b300_sxm", "mi355x", "l40s"])
def test_format_of_the_cache_changes_a_long_prefill_little(model: str, gpu: str) -> None:
    wide, narrow = (
        float(iteration(replica, prefill_step(1.0, 8000.0)).latency_s)
        for replica in (
            a_replica("vllm", model=model, gpu=gpu, kv_dtype=kv) for kv in ("bf16", "fp8")
        )
    )
    assert 0.6 < wide / narrow < 1.7
