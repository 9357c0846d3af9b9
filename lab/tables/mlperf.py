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
from simulators.core.fields import updated
from simulators.core.folder import read_toml
from simulators.serving.point import (
    AS_WORKLOAD,
    CLOSED,
    WHOLE,
    ArrivalsConfig,
    LengthsConfig,
    MeasurementConfig,
    ServingPoint,
)
from simulators.workload.precision import precision

LAUNCHES = Path(__file__).parent / "mlperf_launches.toml"
LENGTHS = Path(__file__).parent / "mlperf_lengths"
FACTS = read_toml(LAUNCHES)

OFFLINE, SERVER = SCENARIOS = "Offline", "Server"
TRTLLM, VLLM = "trtllm", "vllm"
TABLES = {version: facts["file"] for version, facts in FACTS["rounds"].items()}
RUN_S: float = FACTS["run_s"]
EXECUTOR, FILLS_MEMORY = "trtllm_executor", "trtllm_max_utilization"

WHOLE_ANSWER, EACH_TOKEN = 0, 1
"""Iterations between messages of an answer: offline it is sent whole, a server sends each token
unless configured otherwise (NVIDIA's harness of v5.1: `GenerationConfig.streaming` and
`DEFAULT_EXTRA_CONFIG` in `llmlib/config.py`)."""


class ServingBenchmark(NamedTuple):
    """A benchmark: mean lengths in tokens, and limits of 99 % of requests to a server."""

    prompt: int
    output: int
    ttft_s: float
    tpot_s: float


TASKS = {model: ServingBenchmark(**task) for model, task in FACTS["tasks"].items()}


@dataclass(frozen=True)
class InferenceSubmission(PublishedRun):
    """A measured system; `point` is a single replica with all requests queued."""

    name: str
    scenario: str
    gpus: int
    task: ServingBenchmark

    @property
    def tokens_per_gpu_s(self) -> float:
        """What was measured."""
        return self.tokens_per_s / self.gpus


def mlperf(reference: Path) -> list[InferenceSubmission]:
    """Return the submission of each round, benchmark, GPU and scenario with most tokens per GPU."""
    best: dict[tuple[str, ...], InferenceSubmission] = {}
    for version, row in _rows(reference):
        one = _submission(version, row)
        key = (version, one.group, one.scenario)
        best[key] = max(best.get(key, one), one, key=lambda one: one.tokens_per_gpu_s)
    return list(best.values())


def _rows(reference: Path) -> Iterator[tuple[str, Record]]:
    """Yield rounds and submissions whose model, GPU and number of GPUs are known."""
    earlier = FACTS["earlier_columns"]
    for version, table in TABLES.items():
        for row in read_records(reference / table, scenario=list(SCENARIOS), division="closed"):
            one = Record({earlier.get(name, name): value for name, value in row.items()})
            is_complete = one.tokens_per_s and one.n_accelerators and is_gpu(one.accelerator or "")
            if is_complete and is_model(one.model) and model_name(one.model) in TASKS:
                yield version, one


def _submission(version: str, row: Record) -> InferenceSubmission:
    model, gpu = model_name(row.model), gpu_name(row.accelerator)
    task = TASKS[model]._replace(output=_mean_output(row, TASKS[model].output))
    gpus, scenario = int(row.n_accelerators), row.scenario
    launched = _launched(version, gpu, model, scenario)
    point = updated(_replica(row, model, gpu, task), launched)
    point = replace(point, runtime=_runtime(version, model, point.runtime))
    share = point.tp * point.pp * point.attention_dp / gpus
    asked = max(1, round(RUN_S * share * row.tokens_per_s / task.output))
    requests = launched.get("requests", asked)
    return InferenceSubmission(
        point=updated(point, {"arrivals.clients": requests, "requests": requests}),
        tokens_per_s=row.tokens_per_s,
        name=f"{version} {row.vendor} {gpus} x {gpu}",
        scenario=scenario,
        gpus=gpus,
        task=task,
    )


def _runtime(version: str, model: str, engine: str) -> str:
    """Return the runtime of an engine's release of a round."""
    if engine == TRTLLM and model in FACTS["built_ahead"].get(version, ()):
        return EXECUTOR
    return runtime_of(engine, "", FACTS["rounds"][version]["date"])


def _mean_output(row: Record, usual: int) -> int:
    """Return the mean length of answers: as stated, else tokens over samples, else the usual."""
    is_server = row.scenario == SERVER
    tokens = row.get("completed_tokens_per_s") if is_server else row.tokens_per_s
    samples = row.get("completed_samples_per_s" if is_server else "samples_per_s")
    stated = row.get("mean_output_tokens")
    return round(stated or (tokens / samples if tokens and samples else usual))


def _replica(row: Record, model: str, gpu: str, task: ServingBenchmark) -> ServingPoint:
    """Return one replica as configured, with everything queued."""
    sheet, has_experts = load_gpu(gpu), load_model(model).experts > 0
    narrowest = "fp4" if "fp4" in sheet.peak_flops else "fp8"
    stored = FACTS["formats"].get(row.get("weight_data_types") or "", narrowest)
    tp, pp, dp = int(row.get("cfg_tp") or 0), int(row.get("cfg_pp") or 1), 1
    tp = tp or _fewest(model, gpu, stored)
    if row.get("cfg_attention_dp"):
        tp, dp = 1, tp
    is_vllm = sheet.vendor == "amd" or "vLLM" in str(row.software)
    framework = VLLM if is_vllm and "TensorRT" not in str(row.software) else TRTLLM
    settings = ENGINE | {
        "scheduler": FILLS_MEMORY if framework == TRTLLM else load_engine(framework).schedulers[0],
        "max_batch": int(row.get("cfg_batch") or ENGINE["max_batch"]),
        "client.stream_interval": EACH_TOKEN if row.scenario == SERVER else WHOLE_ANSWER,
    }
    point = ServingPoint(
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
        arrivals=ArrivalsConfig(process=CLOSED),
        measurement=MeasurementConfig(window=WHOLE),
        workload=str(LENGTHS / f"{model}.toml"),
        lengths=LengthsConfig(shape=AS_WORKLOAD),
        prompt_tokens=task.prompt,
        output_tokens=task.output,
    )
    return updated(point, settings)


def _launched(version: str, gpu: str, model: str, scenario: str) -> Mapping[str, Any]:
    """Return the fields of a point that a submitter's repository states."""
    key = (version, gpu, model)
    rows = (row for row in FACTS["launch"] if (row["round"], row["gpu"], row["model"]) == key)
    one: Mapping[str, Any] = next(rows, {})
    return {**one.get("both", {}), **one.get(scenario, {})}


def _fewest(model: str, gpu: str, stored: str) -> int:
    """Return the least power of two of GPUs that hold a model."""
    weights, tp = load_model(model).parameters * precision(stored).weight_bytes, 1
    while tp * load_gpu(gpu).hbm_bytes < FACTS["memory_headroom"] * weights:
        tp *= 2
    return tp
