"""Submissions to MLPerf Inference v4.1, v5.1 and v6.0, closed division, as points to simulate.

Quote as "MLPerf, result ID"; nothing derived here is an official result. What a submission does not
say is assumed: the narrowest format its GPU multiplies (fp4 on Blackwell: NVIDIA's technical blog
on v4.1, August 2024), a replica of as few GPUs as hold the model, prompts drawn evenly up to twice
the benchmark's mean, the engine of the GPU's vendor where its software names none. How replicas are
cut and limited stands in `mlperf_launches.toml` where a submitter's repository has it, by round,
model and GPU: partners run the configuration of the GPU's vendor. Workers that read prompts for
others, which two systems of v6.0 have, stand as replicas that do both. TensorRT-LLM fills its
memory: all of its configurations of v5.1 and v6.0 ask for `max_util`, those of v4.1 name no policy.
How long answers are beside their mean stands in `mlperf_lengths/`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.tables.catalog_names import four_bit_experts, gpu_name, is_gpu, is_model, model_name
from lab.tables.deployments import runtime_of
from lab.tables.published_runs import ENGINE, MOST_TOKENS, PublishedRun
from lab.tables.rows import Record, read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.folder import read_toml
from simulators.serving.point import AS_WORKLOAD, CLOSED, WHOLE, ServingPoint
from simulators.workload.precision import precision

BUILT_AHEAD = {"v4.1": ("llama2_70b",), "v5.1": ("llama2_70b", "llama3_1_405b")}
"""Models whose engines NVIDIA's harness builds ahead and runs under the executor in C++
(`DEFAULT_CORE_TYPE` beside its configurations of v5.1, where DeepSeek-R1 is served by PyTorch).
Those of v4.1 knew no other way; those of v6.0 compile by PyTorch (`torch_compile_config`)."""

EXECUTOR = "trtllm_executor"

OFFLINE, SERVER = SCENARIOS = "Offline", "Server"
TRTLLM, VLLM = "trtllm", "vllm"
TABLES = {
    "v4.1": "serving_measured/mlperf_inference_v4_1_llm.parquet",
    "v5.1": "mlperf/inference_v5_1.parquet",
    "v6.0": "mlperf/inference_v6_0.parquet",
}
SUBMITTED = {"v4.1": "2024-08-01", "v5.1": "2025-08-01", "v6.0": "2026-02-01"}
"""When rounds were handed in: engines are of the releases of those days, as of deployments that
name none."""

EARLIER = {
    "framework": "software",
    "gpu": "accelerator",
    "num_gpus": "n_accelerators",
    "submitter": "vendor",
}
"""Columns of the first table, by their names in the others."""


class Task(NamedTuple):
    """A benchmark: mean lengths in tokens, and what 99 % of requests to a server must keep to."""

    prompt: int
    output: int
    ttft_s: float
    tpot_s: float


TASKS = {
    "llama2_70b": Task(294, 294, 2.0, 0.2),
    "llama3_1_405b": Task(9400, 680, 6.0, 0.175),
    "llama3_1_8b": Task(778, 128, 2.0, 0.1),
    "deepseek_v3": Task(800, 3880, 2.0, 0.08),
}
"""MLCommons on its benchmarks: Llama 2 70B (2024, OpenOrca), Llama 3.1 405B, DeepSeek-R1 and Llama
3.1 8B (2025; of the last the answers' limit). Of others we know no length of prompts."""

FORMATS = {"fp8": "fp8", "fp4": "fp4", "INT8": "int8", "INT4": "w4a16", "UINT4": "w4a16"}
"""Precisions by what a submission calls them."""

WHOLE_ANSWER, EACH_TOKEN = 0, 1
"""Iterations between messages of an answer: offline it is sent whole, a server sends each token
unless it is told otherwise (NVIDIA's harness of v5.1: `GenerationConfig.streaming` and
`DEFAULT_EXTRA_CONFIG` in `llmlib/config.py`)."""

RUN_S = 2400.0
"""So long has a system enough to do: NVIDIA's configurations ask for 2,400 s of Llama 2 (v4.1 to
v6.0) and for as many requests of others as take that or longer (v6.0: each replica answers all
prompts of Llama 3.1 405B, those of DeepSeek-R1 six to sixteen times), which launches state where a
configuration does. 600 s, the least that the rules allow, would be two lives of a DeepSeek-R1
request."""

LAUNCHES = Path(__file__).parent / "mlperf_launches.toml"
LENGTHS = Path(__file__).parent / "mlperf_lengths"
BOTH = "both"

FILLS_MEMORY = "trtllm_max_utilization"

ROOM = 1.25
"""Memory over weights from which on a replica needs no further GPU."""


@dataclass(frozen=True)
class Submission(PublishedRun):
    """One measured system; its point is one replica with everything queued."""

    name: str
    scenario: str
    gpus: int
    task: Task

    @property
    def tokens_per_gpu_s(self) -> float:
        """What was measured."""
        return self.tokens_per_s / self.gpus


def mlperf(reference: Path) -> list[Submission]:
    """Return the submission of each round, benchmark, GPU and scenario with most tokens per GPU."""
    best: dict[tuple[str, ...], Submission] = {}
    for version, row in _rows(reference):
        one = _submission(version, row)
        key = (version, one.group, one.scenario)
        best[key] = max(best.get(key, one), one, key=lambda one: one.tokens_per_gpu_s)
    return list(best.values())


def _rows(reference: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield rounds and submissions whose model, GPU and number of GPUs are known."""
    for version, table in TABLES.items():
        for row in read_records(reference / table, scenario=list(SCENARIOS), division="closed"):
            one = Record({EARLIER.get(name, name): value for name, value in row.items()})
            gpu, model = one["accelerator"] or "", one["model"]
            is_told = one["tokens_per_s"] and one["n_accelerators"]
            if is_told and is_gpu(gpu) and is_model(model) and model_name(model) in TASKS:
                yield version, one


def _submission(version: str, row: Mapping[str, Any]) -> Submission:
    model, gpu = model_name(row["model"]), gpu_name(row["accelerator"])
    task = TASKS[model]._replace(output=_mean_output(row, TASKS[model].output))
    gpus, scenario = int(row["n_accelerators"]), row["scenario"]
    launched = _launched(version, gpu, model, scenario)
    point = replace(_replica(row, model, gpu, task), **launched)
    point = replace(point, runtime=_runtime(version, model, point.runtime))
    share = point.tp * point.pp * point.attention_dp / gpus
    asked = max(1, round(RUN_S * share * row["tokens_per_s"] / task.output))
    requests = launched.get("requests", asked)
    return Submission(
        point=replace(point, clients=requests, requests=requests),
        tokens_per_s=row["tokens_per_s"],
        name=f"{version} {row['vendor']} {gpus} x {gpu}",
        scenario=scenario,
        gpus=gpus,
        task=task,
    )


def _runtime(version: str, model: str, engine: str) -> str:
    """Return the runtime of an engine's release of a round."""
    if engine == TRTLLM and model in BUILT_AHEAD.get(version, ()):
        return EXECUTOR
    return runtime_of(engine, "", SUBMITTED[version])


def _mean_output(row: Mapping[str, Any], usual: int) -> int:
    """Return the mean length of answers: as stated, else tokens over samples, else the usual."""
    of_server = row["scenario"] == SERVER
    tokens = row.get("completed_tokens_per_s") if of_server else row["tokens_per_s"]
    samples = row.get("completed_samples_per_s" if of_server else "samples_per_s")
    stated = row.get("mean_output_tokens")
    return round(stated or (tokens / samples if tokens and samples else usual))


def _replica(row: Mapping[str, Any], model: str, gpu: str, task: Task) -> ServingPoint:
    """Return the engine and its cut, as configured where that is known, with everything queued."""
    board, has_experts = load_gpu(gpu), load_model(model).experts > 0
    narrowest = "fp4" if "fp4" in board.peak_flops else "fp8"
    stored = FORMATS.get(row.get("weight_data_types") or "", narrowest)
    tp, pp, dp = int(row.get("cfg_tp") or 0), int(row.get("cfg_pp") or 1), 1
    tp = tp or _fewest(model, gpu, stored)
    if row.get("cfg_attention_dp"):
        tp, dp = 1, tp
    framework = VLLM if board.vendor == "amd" or "vLLM" in str(row["software"]) else TRTLLM
    if "TensorRT" in str(row["software"]):
        framework = TRTLLM
    settings = ENGINE | {
        "scheduler": FILLS_MEMORY if framework == TRTLLM else load_engine(framework).schedulers[0],
        "max_batch": int(row.get("cfg_batch") or ENGINE["max_batch"]),
        "stream_interval": EACH_TOKEN if row["scenario"] == SERVER else WHOLE_ANSWER,
    }
    return ServingPoint(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=pp,
        attention_dp=dp,
        ep=int(row.get("cfg_ep") or 1),
        runtime=framework,
        chunk_size=int(row.get("cfg_max_num_tokens") or MOST_TOKENS),
        dtype=four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        kv_dtype="fp8",
        arrivals=CLOSED,
        window=WHOLE,
        workload=str(LENGTHS / f"{model}.toml"),
        length_shape=AS_WORKLOAD,
        prompt_tokens=task.prompt,
        output_tokens=task.output,
        **settings,
    )


def _launched(version: str, gpu: str, model: str, scenario: str) -> Mapping[str, Any]:
    """Return the fields of a point that a submitter's repository tells."""
    one = _launches().get((version, gpu, model), {})
    return {**one.get(BOTH, {}), **one.get(scenario, {})}


@functools.cache
def _launches() -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
    """Return configurations by round, GPU and model."""
    rows = read_toml(LAUNCHES)["launch"]
    return {(row["round"], row["gpu"], row["model"]): row for row in rows}


def _fewest(model: str, gpu: str, stored: str) -> int:
    """Return the least power of two of GPUs that hold a model."""
    weights, tp = load_model(model).parameters * precision(stored).weight_bytes, 1
    while tp * load_gpu(gpu).hbm_bytes < ROOM * weights:
        tp *= 2
    return tp
