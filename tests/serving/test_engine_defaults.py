"""Options that a point leaves out have the defaults that the engines document.

Expected numbers: `EngineArgs.get_batch_defaults` of vLLM 0.11 to 0.32,
`_handle_gpu_memory_settings` of SGLang 0.5.3 to 0.5.10 (`server_args.py`), `LlmArgs` of
TensorRT-LLM 1.0 to 1.2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.deployments.serving import deployment
from simulators.core.columns import batch_of
from simulators.core.fields import values_of
from simulators.serving.deployment import pools_of
from simulators.serving.options import PoolsConfig
from simulators.serving.point import ServingPoint
from simulators.serving.row_defaults import with_engine_defaults
from simulators.serving.simulator import SIMULATOR, simulate

MODEL = "llama3_1_8b"


@pytest.mark.parametrize(
    ("runtime", "gpu", "tokens", "requests"),
    [
        ("vllm", "l40s", 2048, 256),
        ("vllm", "a100_sxm", 2048, 256),  # 80 GB: larger batches were slower there
        ("vllm", "h100_sxm", 8192, 1024),
        ("vllm", "b200_sxm", 8192, 1024),
        ("sglang", "l4", 2048, 2048),
        ("sglang", "l40s", 4096, 2048),
        ("sglang", "h100_sxm", 8192, 2048),
        ("sglang", "h200_sxm", 8192, 2048),
        ("sglang", "b200_sxm", 16384, 2048),
        ("sglang", "mi300x", 16384, 2048),
        ("trtllm", "l40s", 8192, 2048),
        ("trtllm", "b200_sxm", 8192, 2048),
    ],
)
def test_open_limits_are_the_documented_defaults(
    runtime: str, gpu: str, tokens: int, requests: int
) -> None:
    point = ServingPoint(MODEL, gpu, runtime=runtime)
    assert (point.token_budget, point.max_num_seqs) == (tokens, requests)


@pytest.mark.parametrize(
    ("runtime", "scheduler"),
    [
        ("auto", "vllm_v1"),
        ("vllm_0_13", "vllm_v1"),
        ("sglang_0_5_8", "sglang"),
        ("trtllm_1_1", "trtllm"),
        ("graphs", "vllm"),
    ],
)
def test_open_scheduler_is_that_of_the_runtime(runtime: str, scheduler: str) -> None:
    assert ServingPoint(MODEL, "h100_sxm", runtime=runtime).scheduler == scheduler


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi", "orca", "lightllm"])
@pytest.mark.parametrize("gpu", ["l40s", "b200_sxm"])
def test_schedulers_of_papers_have_the_same_limits_on_all_gpus(scheduler: str, gpu: str) -> None:
    point = ServingPoint(MODEL, gpu, scheduler=scheduler)
    assert (point.token_budget, point.max_num_seqs) == (512, 128)
    assert point.gpu_memory_utilization == 0.9
    assert (point.block_size, point.is_prefix_caching) == (16, False)


def test_stated_options_stay() -> None:
    point = ServingPoint(
        "deepseek_v3",
        "h200_sxm",
        tp=8,
        chunk_size=512,
        max_batch=64,
        memory_fraction=0.8,
        dtype="fp8",
    )
    assert (point.token_budget, point.max_num_seqs) == (512, 64)
    assert (point.gpu_memory_utilization, point.dtype) == (0.8, "fp8")


@pytest.mark.parametrize(("runtime", "tokens"), [("vllm", 16), ("sglang", 1), ("trtllm", 32)])
def test_engines_keep_prefixes_in_blocks_of_their_own_size(runtime: str, tokens: int) -> None:
    point = ServingPoint(MODEL, "h100_sxm", runtime=runtime)
    assert (point.block_size, point.is_prefix_caching) == (tokens, True)
    swapping = replace(point, cache=replace(point.cache, preemption="swap"))
    assert not swapping.is_prefix_caching


def test_another_scheduler_has_its_own_defaults() -> None:
    point = replace(ServingPoint(MODEL, "h100_sxm"), scheduler="orca", gpu="l40s")
    assert (point.token_budget, point.max_num_seqs) == (512, 128)


def test_ranks_of_attention_divide_the_tokens_of_sglang() -> None:
    point = ServingPoint("deepseek_v3", "h200_sxm", runtime="sglang", attention_dp=8, ep=8)
    assert point.token_budget == 8192 // 8
    command = deployment(point)
    assert "--chunked-prefill-size 8192" in command
    assert "--max-running-requests 16384" in command  # of which each rank takes an eighth


def test_open_precision_is_that_of_the_checkpoint() -> None:
    assert ServingPoint("deepseek_v3", "h200_sxm", tp=8).dtype == "fp8_block"
    assert ServingPoint("gpt_oss_120b", "h100_sxm").dtype == "bf16+w4a16"
    assert ServingPoint(MODEL, "h100_sxm").dtype == "bf16"


def test_each_pool_has_the_defaults_of_its_own_gpu() -> None:
    pools = PoolsConfig(prefill_gpus=1, decode_gpus=1, decode_gpu="a100_sxm", kv_link="rdma")
    point = ServingPoint(MODEL, "h100_sxm", pools=pools, requests=20)
    limits = [(pool.token_budget, pool.max_num_seqs) for pool in pools_of(point)]
    assert limits == [(8192, 1024), (2048, 256)]
    metrics = simulate(point)
    assert (metrics.token_budget, metrics.max_num_seqs) == (8192, 256)


@pytest.mark.parametrize("fidelity", ["event", "analytic"])
def test_rows_state_the_resolved_limits_and_equal_single_points(fidelity: str) -> None:
    points = [
        {"model": MODEL, "gpu": gpu, "runtime": runtime, "fidelity": fidelity, "requests": 40}
        for gpu in ("l40s", "h100_sxm")
        for runtime in ("vllm", "sglang", "auto")
    ]
    rows = SIMULATOR.evaluate(batch_of(ServingPoint, *points)).to_pylist()
    alone = [simulate(ServingPoint(**point)) for point in points]  # type: ignore[arg-type]
    assert [row["token_budget"] for row in rows] == [2048, 4096, 2048, 8192, 8192, 8192]
    for row, metrics in zip(rows, alone, strict=True):
        assert {name: row[name] for name in values_of(metrics)} == values_of(metrics)


def test_release_sets_its_rules_in_rows_too() -> None:
    rows = batch_of(
        ServingPoint, *({"model": MODEL, "gpu": "h100_sxm", "release": r} for r in ("0.14.1", ""))
    )
    option = with_engine_defaults(rows).column("scheduling.scheduler_reserve_full_isl")
    assert option.to_pylist() == ["off", "auto"]


def test_full_batch_without_a_stated_limit_holds_what_fits() -> None:
    design = {"model": MODEL, "gpu": "h100_sxm", "fidelity": "analytic", "qps": None}
    stated = [{}, {"max_batch": 256}, {"max_batch": 1024}]
    rows = SIMULATOR.evaluate(batch_of(ServingPoint, *(design | one for one in stated))).to_pylist()
    assert [row["status"] for row in rows] == ["ok", "ok", "infeasible"]
    assert 256 < rows[0]["mean_batch"] < 1024
    assert simulate(ServingPoint(**design)).mean_batch == rows[0]["mean_batch"]  # type: ignore[arg-type]


def test_explanation_lists_the_options_of_the_engine() -> None:
    rows = SIMULATOR.explain({"model": MODEL, "gpu": "h100_sxm", "requests": 20})
    shown = {row.name: row.note for row in rows if row.phase == "engine"}
    assert shown == {
        "scheduler": "vllm_v1",
        "runtime": "vllm",
        "dtype": "bf16",
        "chunk_size": "8192",
        "max_batch": "1024",
        "memory_fraction": "0.9",
        "cache.block_size": "16",
        "cache.prefix_caching": "True",
    }


def test_exported_command_states_the_defaults() -> None:
    command = deployment(ServingPoint(MODEL, "l40s", runtime="vllm"))
    assert "--max-num-seqs 256" in command
    assert "--max-num-batched-tokens 2048" in command
