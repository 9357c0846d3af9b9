"""Nucleus sampling: bytes moved and time added to an iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import HEAD, stage_iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.kernels.price import moved_bytes
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Shard, decode_step
from simulators.workload.llm.transformer import nucleus_operators

MODEL = load_model("qwen3_8b")
LIKELIEST = Replica(
    MODEL,
    load_gpu("h100_sxm"),
    load_cluster("dgx_h100"),
    Parallelism(),
    dtype="bf16",
    kv_dtype="bf16",
    runtime=load_runtime("vllm"),
)
NUCLEUS = replace(LIKELIEST, nucleus=True)


@pytest.mark.parametrize(("rows", "bytes_a_logit"), [(8, 96 + 156), (127, 252), (128, 96 + 176)])
def test_sampling_passes_read_the_logits_of_all_ranks(rows: int, bytes_a_logit: int) -> None:
    for tp in (1, 4):
        shard = Shard(MODEL, Parallelism(tp=tp), HEAD, "bf16")
        moved = sum(moved_bytes(one) for one in nucleus_operators(shard, float(rows)))
        assert moved == pytest.approx(bytes_a_logit * rows * MODEL.vocab)


def test_nucleus_sampling_adds_the_time_of_memory_passes() -> None:
    def seconds(replica: Replica, requests: float) -> float:
        return float(np.asarray(stage_iteration(replica, decode_step(requests, 500.0), 0).busy_s))

    for requests in (8.0, 256.0):
        more_s = seconds(NUCLEUS, requests) - seconds(LIKELIEST, requests)
        least_s = 252.0 * requests * MODEL.vocab / NUCLEUS.gpu.hbm_bytes_per_s
        assert least_s < more_s < 1.5 * least_s + 2e-5
