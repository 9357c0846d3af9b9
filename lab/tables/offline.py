"""Throughput of TensorRT-LLM with every request queued at once, as NVIDIA publishes it.

The number of requests follows from the lengths (`trtllm-bench`'s recipe); an engine takes what its
memory holds, up to 2,048 requests and 8,192 tokens an iteration, or one whole prompt. Of mixtures
in 4 bits the experts alone are narrow; the KV cache is fp8 where weights are narrow. The options
are those of the pages themselves (NVIDIA/TensorRT-LLM, `perf-overview.md` of 1.0 at 00f3768, of the
developer guide at 585c756).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lab.tables.known import known_rows
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, load_model
from simulators.composition.deployments import four_bit_experts
from simulators.core.errors import Infeasible
from simulators.core.folder import GPUS
from simulators.serving.engine.frontend import is_left_out
from simulators.serving.point import NONE, ServingPoint
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate
from simulators.workload.precision import precision

OFFLINE = "serving_measured/trtllm_perf_overview_offline.parquet"
MLPERF = "serving_measured/mlperf_inference_v4_1_llm.parquet"

MODELS = {
    "Mixtral 8x7B": "mixtral_8x7b",
    "Llama 3.3 70B": "llama3_1_70b",
    "Llama 3.1 405B": "llama3_1_405b",
    "LLaMA v3.1 70B": "llama3_1_70b",
    "LLaMA v3.1 8B": "llama3_1_8b",
    "Llama 3.1 8B": "llama3_1_8b",
    "Llama 4 Maverick": "llama4_maverick",
    "Llama 4 Scout": "llama4_scout",
    "Qwen3-30B-A3B": "qwen3_30b",
    "GPT-OSS 120B": "gpt_oss_120b",
    "GPT-OSS 20B": "gpt_oss_20b",
    "Mistral 7B": "mistral_7b",
    "DeepSeek-R1-0528": "deepseek_v3",
}
BOARDS = {
    "a100_pcie": "a100_pcie_80gb", "gh200_480gb": "gh200", "rtx_pro_6000_server": "rtx_pro_6000",
}  # fmt: skip

REQUESTS = {
    (128, 128): 30_000, (128, 4096): 1_500, (1000, 2000): 1_500, (2048, 2048): 1_500,
    (5000, 500): 1_500, (20_000, 2_000): 1_000,
    (8192, 1024): 1_500, (1024, 8192): 1_500, (32_768, 1024): 1_000, (1024, 32_768): 1_000,
}  # fmt: skip
OTHERWISE = 3_000
"""Requests of an offline run by its lengths, as TensorRT-LLM's performance page states them."""

ENOUGH = 6_000
"""Longer runs have the same throughput."""

RUNTIME = "trtllm_cutlass"
"""The pages name CUTLASS for experts, or nothing, which is the same. On Hopper they name Triton for
gpt-oss; which kernel TensorRT-LLM's table timed there, it does not say."""

MOST_TOKENS, MOST_SEQUENCES = 8192, 2048
MEMORY_FRACTION = 0.9


@dataclass(frozen=True)
class Throughput:
    """One measured throughput."""

    name: str
    version: str
    point: ServingPoint
    tokens_per_s: float

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.point.model).experts == 0

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"


def offline(reference: Path) -> list[Throughput]:
    """Return the offline runs of the reference folder."""
    rows = known_rows(
        pq.read_table(reference / OFFLINE).to_pylist(), OFFLINE, model=MODELS.__contains__,
        gpu=lambda name: GPUS.has(BOARDS.get(name, name)),
    )  # fmt: skip
    return [
        Throughput(
            name=f"{row['model']} {row['gpu']} {row['precision']} tp{row['tp_size']}",
            version=row["framework_version"],
            point=_point(row),
            tokens_per_s=row["output_tokens_per_s"],
        )
        for row in rows
    ]


def _point(row: Mapping[str, Any]) -> ServingPoint:
    """Return the engine, of which everything is asked at once."""
    model, gpu = MODELS[row["model"]], BOARDS.get(row["gpu"], row["gpu"])
    stored = "fp4" if load_model(model).published_experts == MXFP4 else row["precision"]
    has_narrow_experts = stored == "fp4" and load_model(model).experts > 0
    group = f"{model}.{gpu}"
    tp, dp = int(row["tp_size"]), 1
    if row["attention_dp"] or _is_attention_parallel(row):
        tp, dp = 1, tp
    requests = min(REQUESTS.get((row["isl"], row["osl"]), OTHERWISE), ENOUGH)
    return ServingPoint(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=int(row["pp_size"]),
        attention_dp=dp,
        ep=dp if dp > 1 else int(row["ep_size"] or 1),
        scheduler="trtllm",
        max_batch=MOST_SEQUENCES,
        chunk_size=max(MOST_TOKENS, row["isl"]),
        clients=requests,
        requests=requests,
        runtime=f"{RUNTIME}@{group}" if is_left_out("trtllm", group) else RUNTIME,
        frontend=NONE,
        memory_fraction=MEMORY_FRACTION,
        watermark=0.0,
        dtype=four_bit_experts(model, gpu) if has_narrow_experts else stored,
        kv_dtype=_kv_dtype(model, gpu, stored),
        arrivals="closed",
        prompt_tokens=row["isl"],
        output_tokens=row["osl"],
    )


def _is_attention_parallel(row: Mapping[str, Any]) -> bool:
    """Return whether each GPU attends to requests of its own: mixtures since release 1.0.

    Later releases of the page call the same runs DEP.
    """
    has_experts = load_model(MODELS[row["model"]]).experts > 0
    return has_experts and row["framework_version"].startswith("1.")


def _kv_dtype(model: str, gpu: str, stored: str) -> str:
    """Return the precision of the KV cache, which the page leaves alone for gpt-oss on Hopper."""
    if stored == "fp16":
        return "fp16"
    is_mxfp4 = load_model(model).published_experts == MXFP4
    return "bf16" if is_mxfp4 and "fp4" not in load_gpu(gpu).peak_flops else "fp8"


@dataclass(frozen=True)
class Benchmarked:
    """One submission to MLPerf Inference, whose cut is not stated."""

    name: str
    scenario: str
    point: ServingPoint
    gpus: int
    tokens_per_s: float


MLPERF_GPUS = {
    "NVIDIA H100-SXM-80GB": "h100_sxm", "NVIDIA H200-SXM-141GB": "h200_sxm",
    "NVIDIA B200-SXM-180GB": "b200_sxm", "NVIDIA L40S": "l40s",
}  # fmt: skip
MLPERF_PROMPT, MLPERF_OUTPUT = 294, 294
"""Mean lengths of the Llama-2-70B benchmark's questions and answers (OpenOrca)."""

MLPERF_REQUESTS = 2000
ROOM = 1.25
"""Memory over weights from which on a replica needs no further GPU."""


def mlperf(reference: Path) -> list[Benchmarked]:
    """Return submissions of Llama-2-70B on GPUs we know, the best of each.

    They are taken to run in the narrowest format a GPU multiplies: fp8, and fp4 on Blackwell, whose
    tensor cores NVIDIA's technical blog on the round credits with it (August 2024,
    nvidia-blackwell-platform-sets-new-llm-inference-records-in-mlperf-inference-v4-1).
    """
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in pq.read_table(reference / MLPERF).to_pylist():
        known = row["gpu"] in MLPERF_GPUS and row["model"] == "llama2-70b-99"
        if known and row["tokens_per_s"] and row["scenario"] in ("Offline", "Server"):
            key = (row["gpu"], row["scenario"])
            if key not in best or _per_gpu(row) > _per_gpu(best[key]):
                best[key] = row
    return [_benchmarked(row) for row in best.values()]


def _per_gpu(row: Mapping[str, Any]) -> float:
    return float(row["tokens_per_s"] / row["num_gpus"])


def _benchmarked(row: Mapping[str, Any]) -> Benchmarked:
    model, gpu = load_model("llama2_70b"), load_gpu(MLPERF_GPUS[row["gpu"]])
    dtype = "fp4" if "fp4" in gpu.peak_flops else "fp8"
    tp = 1
    while tp * gpu.hbm_bytes < ROOM * model.parameters * precision(dtype).weight_bytes:
        tp *= 2
    point = ServingPoint(
        model=model.name, gpu=gpu.name, tp=tp, scheduler="trtllm", runtime="trtllm", frontend=NONE,
        max_batch=MOST_SEQUENCES, chunk_size=MOST_TOKENS, memory_fraction=MEMORY_FRACTION,
        watermark=0.0, dtype=dtype, kv_dtype="fp8", arrivals="closed", clients=MLPERF_REQUESTS,
        requests=MLPERF_REQUESTS, prompt_tokens=MLPERF_PROMPT, output_tokens=MLPERF_OUTPUT,
    )  # fmt: skip
    name = f"{row['submitter']} {row['system']}"
    return Benchmarked(name, row["scenario"], point, int(row["num_gpus"]), row["tokens_per_s"])


def predict(rows: Sequence[Throughput]) -> list[float | None]:
    """Return our tokens per second of each, or None where we say that it cannot be run."""
    shelf = Shelf()
    found: list[float | None] = []
    for row in rows:
        try:
            found.append(simulate(row.point, shelf).tokens_per_s)
        except Infeasible:
            found.append(None)
    return found
