"""Real runs of vLLM as points of this simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.claims.serving import point_of_run
from simulators.serving.options import NONE
from simulators.serving.simulator import simulate

RUN: dict[str, Any] = {
    "gpu": "RTX4090",
    "model": "meta-llama/Llama-3.1-8B",
    "tp": 1,
    "dp": 1,
    "ep": False,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "max_model_len": 32768,
    "dtype": "bfloat16",
    "mem_util": 0.83,
    "prefix_caching": True,
}


@pytest.mark.parametrize("blocks", [1000, 2588])
def test_a_run_has_the_kv_blocks_it_states(blocks: int) -> None:
    point = point_of_run({**RUN, "num_gpu_blocks": blocks})
    assert simulate(replace(point, requests=2)).kv_blocks == blocks


def test_a_run_is_vllm_as_its_engine_sees_requests() -> None:
    point = point_of_run({**RUN, "num_gpu_blocks": None})
    assert (point.runtime, point.client.frontend) == ("vllm", NONE)


def test_a_run_that_states_no_blocks_has_its_share_of_memory() -> None:
    assert point_of_run({**RUN, "num_gpu_blocks": None}).memory_fraction == RUN["mem_util"]


def test_two_gpus_run_on_the_host_where_they_were_timed() -> None:
    """Their NCCL sustained 16 of the 63 GB/s of a slot, months after the runs."""
    run = {**RUN, "gpu": "RTXPRO6000", "num_gpu_blocks": None}
    assert point_of_run(run).cluster == "pcie_through_host"
    assert point_of_run({**RUN, "num_gpu_blocks": None}).cluster == "auto"


def test_ranks_of_data_parallelism_are_groups_that_share_the_experts() -> None:
    run = {"gpu": "RTXPRO6000", "model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "dp": 2, "ep": True}
    point = point_of_run({**RUN, **run, "num_gpu_blocks": None})
    assert (point.tp, point.attention_dp, point.ep) == (1, 2, 2)
