"""Printed results as points: what the launch command says, else documented defaults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.claims.serving import changed
from lab.tables.result_blocks import BLOCKS, ResultBlock, blocks, reason_to_skip
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.serving.demand.requests import requests_of
from simulators.workload.llm.memory import activation_bytes
from simulators.workload.llm.parallelism import Parallelism

ROW: dict[str, Any] = {
    "path": "page.md",
    "line": 7,
    "launch_command": "vllm serve",
    "bench_command": None,
    "environment_text": None,
    "heading": None,
    "framework": "vllm",
    "framework_version": "0.11.0",
    "model": "Qwen/Qwen3-32B",
    "gpu": "H100",
    "tp": 2,
    "dp": None,
    "ep": None,
    "pp": None,
    "expert_parallel_flag": False,
    "dp_attention_flag": False,
    "chunk_tokens": None,
    "max_running": None,
    "kv_dtype": None,
    "mem_fraction": None,
    "attention_backend": None,
    "moe_backend": None,
    "prefix_cache_off_flag": False,
    "speculative": False,
    "disagg": False,
    "flags": None,
    "model_name_precision_hint": None,
    "dataset": None,
    "isl_arg": None,
    "osl_arg": None,
    "random_range_ratio": None,
    "max_concurrency_arg": None,
    "max_concurrency_printed": None,
    "request_rate_arg": None,
    "request_rate_printed": None,
    "successful_requests": 100,
    "duration_s": 10.0,
    "mean_input_tokens": 1000.0,
    "mean_output_tokens": 101.0,
    "tpot_mean_s": 0.05,
    "tpot_p99_s": None,
    "ttft_mean_s": 5.0,
    "ttft_p99_s": None,
    "output_tokens_per_s": 1010.0,
    "spec_algorithm": None,
    "spec_steps": None,
    "spec_topk": None,
    "spec_config": None,
}


ANOTHER = "another model or cut is named beside"


def block_of(folder: Path, **changes: Any) -> ResultBlock:
    (folder / BLOCKS).parent.mkdir(parents=True, exist_ok=True)
    version = {"framework_version": "0.5.10"} if changes.get("framework") == "sglang" else {}
    pq.write_table(pa.Table.from_pylist([ROW | version | changes]), folder / BLOCKS)
    found, skipped = blocks(folder)
    assert not skipped
    return found[0]


def test_drafts_are_those_of_a_models_own_head(tmp_path: Path) -> None:
    found = '{"method":"mtp","num_speculative_tokens":2}'
    point = block_of(tmp_path, speculative=True, spec_config=found).point
    assert (point.speculation.method, point.speculation.num_draft_tokens, point.max_batch) == (
        "mtp",
        2,
        1024,
    )
    steps = {"spec_algorithm": "EAGLE", "spec_steps": 3, "spec_topk": 1, "framework": "sglang"}
    point = block_of(tmp_path, speculative=True, **steps).point
    assert (point.speculation.method, point.speculation.num_draft_tokens, point.max_batch) == (
        "mtp",
        3,
        48,
    )


def test_without_clients_or_rate_all_is_asked_at_once(tmp_path: Path) -> None:
    point = block_of(tmp_path).point
    assert (point.arrivals.process, point.arrivals.clients, point.requests) == ("closed", 100, 100)
    timed = block_of(tmp_path, request_rate_arg="10").point
    assert (timed.arrivals.process, timed.qps) == ("poisson", 10.0)


def test_lengths_that_somebody_writes_are_fixed_and_others_drawn(tmp_path: Path) -> None:
    fixed = block_of(tmp_path).point
    assert (fixed.prompt_tokens, fixed.lengths.spread) == (1000, 0.0)
    drawn = block_of(tmp_path, mean_input_tokens=219.0).point
    assert (drawn.prompt_tokens, drawn.workload) == (219, "sharegpt_v3")
    assert drawn.lengths.shape == "as_workload"
    drawn_by = {"dataset": "random", "framework": "sglang", "mean_input_tokens": 219.0}
    asked = block_of(tmp_path, **drawn_by, bench_command="vllm bench serve").point
    assert (asked.prompt_tokens, asked.lengths.spread) == (219, 0.0)
    even = block_of(tmp_path, **drawn_by, bench_command="python -m sglang.bench_serving").point
    assert (even.prompt_tokens, even.lengths.spread, even.lengths.shape) == (438, 0.99, "evenly")


def test_the_longest_answers_of_conversations_end_until_the_mean_is_what_was_answered(
    tmp_path: Path,
) -> None:
    asked = {"mean_input_tokens": 219.0, "successful_requests": 1000}
    as_asked = block_of(tmp_path, **asked, mean_output_tokens=204.0).point
    ended = block_of(tmp_path, **asked, mean_output_tokens=197.0).point
    assert (as_asked.output_tokens, as_asked.lengths.max_output_tokens) == (204, 0)
    assert ended.output_tokens == 204
    lengths = requests_of(ended).output_tokens
    assert lengths.mean() == pytest.approx(197.0, abs=0.5)
    assert lengths.max() == ended.lengths.max_output_tokens
    assert np.sum(lengths != requests_of(as_asked).output_tokens) < 100
    ignoring = {"bench_command": "python -m sglang.bench_serving", "framework": "sglang"}
    whole = block_of(tmp_path, **asked, **ignoring, mean_output_tokens=197.0).point
    assert (whole.output_tokens, whole.lengths.max_output_tokens) == (197, 0)


def test_an_attention_backend_names_the_kernel_of_latent_decodes(tmp_path: Path) -> None:
    asked = {"framework": "sglang", "framework_version": "0.5.7", "attention_backend": "triton"}
    latent = {"model": "zai-org/GLM-4.7-Flash", "gpu": "B200"}
    assert block_of(tmp_path, **asked, **latent).decode == "triton_8"
    assert block_of(tmp_path, **asked).decode == ""
    assert block_of(tmp_path, **asked | {"attention_backend": None}, **latent).decode == ""


def test_preempted_requests_find_what_they_had_in_a_prefix_cache(tmp_path: Path) -> None:
    assert block_of(tmp_path).point.cache.preemption == "cached"
    assert block_of(tmp_path, prefix_cache_off_flag=True).point.cache.preemption == "recompute"


def test_chosen_keys_have_the_precision_that_the_engine_gives_them(tmp_path: Path) -> None:
    chosen = {"model": "deepseek-ai/DeepSeek-V3.2", "tp": 8}
    found = {
        (gpu, framework): block_of(tmp_path, **chosen, gpu=gpu, framework=framework).point.kv_dtype
        for gpu in ("H200", "B200")
        for framework in ("vllm", "sglang")
    }
    assert [gpu_engine for gpu_engine, dtype in found.items() if dtype == "bf16"] == [
        ("H200", "sglang")
    ]
    found = block_of(tmp_path, **chosen, gpu="H200", kv_dtype="bfloat16").point
    assert (found.kv_dtype, block_of(tmp_path).point.kv_dtype) == ("bf16", "bf16")


def test_lengths_that_sglangs_client_drew_are_those_very_ones(tmp_path: Path) -> None:
    client = {
        "bench_command": "python -m sglang.bench_serving",
        "framework": "sglang",
        "dataset": "random",
        "isl_arg": 1000.0,
        "osl_arg": 1000.0,
        "random_range_ratio": None,
        "successful_requests": 10,
        "mean_input_tokens": 610.1,
    }
    point = block_of(tmp_path, **client, mean_output_tokens=421.0).point  # a token is not printed
    assert (point.lengths.shape, point.seed, point.prompt_tokens) == ("bench_serving", 1, 1000)
    asked = requests_of(point)
    assert (asked.prompt_tokens.sum(), asked.output_tokens.sum()) == (6101, 4220)
    other = block_of(tmp_path, **client, mean_output_tokens=500.0).point
    assert (other.lengths.shape, other.output_tokens) == ("evenly", 1000)


def test_defaults_are_those_of_the_engine_on_the_gpu(tmp_path: Path) -> None:
    batches = {
        (gpu, framework): (point.chunk_size, point.max_batch)
        for gpu in ("A100", "H100")
        for framework in ("vllm", "sglang")
        for point in [block_of(tmp_path, gpu=gpu, framework=framework).point]
    }
    assert batches["A100", "vllm"] == (2048, 256)
    assert batches["H100", "vllm"] == (8192, 1024)
    assert batches["H100", "sglang"] == (8192, 2048)


def test_groups_that_attend_apart_share_the_gpus_of_tp(tmp_path: Path) -> None:
    names = {"model": "deepseek-ai/DeepSeek-V3.2", "framework": "sglang", "tp": 8, "dp": 8}
    point = block_of(tmp_path, **names, dp_attention_flag=True).point
    assert (point.tp, point.attention_dp, point.ep, point.dtype) == (1, 8, 1, "fp8_block")
    assert point.chunk_size == 8192 // 8
    short = "vllm serve -tp 2 -dp 4 --pp_size=2 --enable-expert-parallel"
    read = block_of(tmp_path, model="deepseek-ai/DeepSeek-V3.2", tp=None, launch_command=short)
    assert (read.point.tp, read.point.attention_dp, read.point.pp) == (2, 4, 2)
    parts = block_of(tmp_path, **names | {"dp": None}, ep=2).point
    assert (parts.tp, parts.ep) == (8, 2)
    copies = block_of(tmp_path, dp=4).point
    assert (copies.tp, copies.replicas) == (2, 4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"framework": "sglang-jax"}, "unknown engine"),
        ({"gpu": None}, "unknown GPU"),
        ({"speculative": True}, "speculation"),
        ({"model": "Qwen/Qwen2.5-VL-7B-Instruct"}, "images"),
        ({"max_concurrency_arg": 1000.0}, "the load is not stated"),
        ({"flags": "no TTFT"}, "a remark on the numbers"),
        ({"launch_command": "vllm serve -dcp 8"}, "an option we have no axis for"),
        ({"bench_command": "vllm bench serve --model Qwen/Qwen3-8B"}, ANOTHER),
        ({"environment_text": "Tensor Parallelism: 16"}, ANOTHER),
        ({"heading": "Choosing the Engine > SGLang"}, "its heading is of another launch"),
        ({"heading": "Max Num Seqs 256", "max_running": 512}, "its heading is of another launch"),
    ],
)
def test_unusable_results_have_a_reason(change: dict[str, Any], why: str) -> None:
    assert reason_to_skip(ROW | change) == why


def test_a_pair_differs_in_one_kind_of_option(tmp_path: Path) -> None:
    one, wider = block_of(tmp_path), block_of(tmp_path, tp=4)
    assert changed(one, wider) == "parallelism"
    assert changed(one, block_of(tmp_path, tp=4, chunk_tokens=4096)) == ""
    assert changed(one, dataclasses.replace(wider, path="another.md")) == ""
    assert changed(one, block_of(tmp_path, tp=4, mean_output_tokens=150.0)) == ""


@pytest.mark.parametrize(
    ("framework", "version", "runtime"),
    [
        ("vllm", "0.13.0", "vllm_0_13"),
        ("vllm", "0.9.2", "vllm_0_13"),
        ("vllm", "0.14.0", "vllm"),
        ("vllm", None, "vllm"),
        ("sglang", "0.5.6.post2", "sglang_0_5_8"),
        ("sglang", "0.5.9", "sglang_0_5_9"),
        ("trtllm", "1.0.0", "trtllm_cutlass"),
    ],
)
def test_a_release_has_the_runtime_of_its_time(
    tmp_path: Path, framework: str, version: str | None, runtime: str
) -> None:
    block = block_of(tmp_path, framework=framework, framework_version=version)
    assert block.point.runtime == runtime


@pytest.mark.parametrize(("dp", "reserved_mib"), [(None, 14_848.0), (8, 33_280.0)])
def test_sglang_reserves_what_its_server_says(
    tmp_path: Path, dp: int | None, reserved_mib: float
) -> None:
    asked = {"framework": "sglang", "model": "deepseek-ai/DeepSeek-V3.2", "gpu": "H200", "tp": 8}
    point = block_of(tmp_path, **asked, dp=dp, dp_attention_flag=bool(dp)).point
    memory = load_gpu("h200_sxm").hbm_bytes
    layout = Parallelism(tp=point.tp, attention_dp=point.attention_dp)
    model, tokens, rows = load_model(point.model), float(point.chunk_size), float(point.max_batch)
    working = float(activation_bytes(model, layout, point.dtype, tokens, rows))
    static = memory * point.memory_fraction - working
    assert static == pytest.approx(memory - reserved_mib * 2.0**20)
    found = block_of(tmp_path, **asked, dp=dp, dp_attention_flag=bool(dp), mem_fraction="0.7").point
    assert found.memory_fraction == pytest.approx(0.7 + working / memory)


def test_vllm_keeps_no_keys_where_its_first_pass_draws_tokens(tmp_path: Path) -> None:
    asked = {"framework": "vllm", "model": "openai/gpt-oss-120b", "gpu": "H100"}
    points = {n: block_of(tmp_path, **asked, max_running=n).point for n in (8, 1024)}
    drawn = 16.0 * (1024 - 8) * load_model("gpt_oss_120b").vocab
    saved = points[8].memory_fraction - points[1024].memory_fraction
    assert saved * load_gpu("h100_sxm").hbm_bytes == pytest.approx(drawn)


def test_who_prepares_ahead_and_in_bigger_batches_differs_in_two_options(tmp_path: Path) -> None:
    plain = block_of(tmp_path)
    bigger = block_of(tmp_path, chunk_tokens=512)
    ahead = block_of(tmp_path, chunk_tokens=512, launch_command="vllm serve --async-scheduling")
    assert [changed(plain, other) for other in (bigger, ahead)] == ["batches", ""]
