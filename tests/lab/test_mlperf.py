"""Submissions as points: what they state is taken, the rest assumed by rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.tables.published import (
    LAUNCHES,
    LENGTHS,
    MLPERF_TABLES,
    TASKS,
    InferenceSubmission,
    mlperf,
)
from simulators.core.folder import read_toml
from simulators.serving.demand.requests import requests_of

EARLIER = {
    "division": "closed",
    "submitter": "a",
    "model": "llama2-70b-99",
    "scenario": "Offline",
    "gpu": "NVIDIA H100-SXM-80GB",
    "num_gpus": 8,
    "framework": "TensorRT 10.2",
    "tokens_per_s": 8e3,
    "samples_per_s": 25.0,
}
ROW = {
    "division": "closed",
    "vendor": "b",
    "model": "llama2-70b-99",
    "scenario": "Offline",
    "accelerator": "NVIDIA GB300",
    "n_accelerators": 4,
    "software": "TensorRT 10.11",
    "tokens_per_s": 4e4,
    "samples_per_s": None,
    "mean_output_tokens": 275.0,
    "weight_data_types": "fp4",
    "cfg_tp": 2.0,
    "cfg_batch": 512.0,
    "cfg_max_num_tokens": 3584.0,
}


def submissions(folder: Path, *later: dict[str, Any]) -> list[InferenceSubmission]:
    rows = {"v4.1": [EARLIER], "v5.1": [ROW | one for one in later or ({},)], "v6.0": [ROW]}
    for version, table in MLPERF_TABLES.items():
        (folder / table).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[version]), folder / table)
    return mlperf(folder)


def test_a_submission_is_run_as_configured(tmp_path: Path) -> None:
    _, one, _ = submissions(tmp_path)
    assert (one.point.tp, one.point.max_batch, one.point.chunk_size) == (2, 512, 3584)
    assert (one.point.dtype, one.task.output, one.tokens_per_gpu_s) == ("fp4", 275, 1e4)


def test_what_is_not_stated_is_the_least_that_holds_the_model(tmp_path: Path) -> None:
    one, *_ = submissions(tmp_path)
    assert (one.point.gpu, one.point.tp, one.point.dtype) == ("h100_sxm", 2, "fp8")
    assert one.task.output == 320  # tokens over samples


def test_forty_minutes_of_what_was_measured_are_asked(tmp_path: Path) -> None:
    one, *_ = submissions(tmp_path)
    assert one.point.requests == 2400 * 25 * 2 // 8


def test_as_many_are_asked_as_a_repository_tells(tmp_path: Path) -> None:
    names = {"accelerator": "NVIDIA GB200", "model": "deepseek-r1", "cfg_attention_dp": "True"}
    offline, server, *_ = submissions(
        tmp_path, names, names | {"scenario": "Server", "completed_tokens_per_s": None}
    )[1:]
    asked = round(2400 * 4e4 / 275 * 2 / 4)
    assert (offline.point.requests, server.point.requests) == (23403, asked)


def test_a_server_streams_each_token_by_default(tmp_path: Path) -> None:
    names = {"accelerator": "NVIDIA GB200", "model": "deepseek-r1", "cfg_attention_dp": "True"}
    streams = {"scenario": "Server", "completed_tokens_per_s": None}
    offline, server = submissions(tmp_path, names, names | streams)[1:3]
    assert (offline.point.client.stream_interval, server.point.client.stream_interval) == (0, 1)


def test_what_a_repository_tells_is_of_its_round_and_scenario(tmp_path: Path) -> None:
    names = {"accelerator": "NVIDIA H100-SXM-80GB", "cfg_tp": None, "cfg_batch": None}
    earlier, server, *_ = submissions(tmp_path, names | {"scenario": "Server"})
    assert (earlier.point.tp, earlier.point.pp, earlier.point.max_batch) == (2, 1, 896)
    assert (server.point.tp, server.point.pp, server.point.chunk_size) == (1, 2, 1024)


def test_each_configuration_has_a_source_and_is_of_one_system() -> None:
    rows = read_toml(LAUNCHES)["launch"]
    assert all("inference_results_" in row["source"] for row in rows)
    assert len({(row["round"], row["gpu"], row["model"]) for row in rows}) == len(rows)


def test_the_best_of_equal_submissions_is_kept(tmp_path: Path) -> None:
    found = submissions(tmp_path, {"tokens_per_s": 2e4}, {"tokens_per_s": 5e4}, {})
    assert [one.tokens_per_s for one in found] == [8e3, 5e4, 4e4]


@pytest.mark.parametrize(
    "change",
    [{"accelerator": None}, {"n_accelerators": 0}, {"model": "resnet"}, {"model": "mixtral-8x7b"}],
)
def test_unusable_submissions_are_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    assert len(submissions(tmp_path, change)) == 2


def test_answers_are_as_uneven_as_the_benchmarks_and_prompts_even(tmp_path: Path) -> None:
    one, *_ = submissions(tmp_path)
    asked = requests_of(replace(one.point, requests=4000))
    assert asked.prompt_tokens.mean() == pytest.approx(one.task.prompt, rel=1e-2)
    assert asked.output_tokens.mean() == pytest.approx(one.task.output, rel=1e-2)
    assert asked.prompt_tokens.max() <= 2.1 * one.task.prompt
    assert np.percentile(asked.output_tokens, 99) > 3.0 * one.task.output


def test_every_benchmark_has_lengths_and_each_says_whence() -> None:
    assert {file.stem for file in LENGTHS.glob("*.toml")} == set(TASKS)
    assert all(read_toml(file)["source"] for file in LENGTHS.glob("*.toml"))


def test_tensorrt_llm_fills_its_memory(tmp_path: Path) -> None:
    assert {one.point.scheduler for one in submissions(tmp_path)} == {"trtllm_max_utilization"}


def test_engines_are_of_their_days(tmp_path: Path) -> None:
    runtimes = [one.point.runtime for one in submissions(tmp_path)]
    assert runtimes == ["trtllm_executor", "trtllm_executor", "trtllm"]


def test_gpus_of_amd_run_vllm(tmp_path: Path) -> None:
    names = {"accelerator": "AMD Instinct MI355X 288GB HBM3e", "software": "ROCm"}
    _, one, _ = submissions(tmp_path, names)
    assert (one.point.runtime, one.point.scheduler) == ("vllm", "vllm_v1")
