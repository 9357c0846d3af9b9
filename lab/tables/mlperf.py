"""Submissions of Llama-2-70B to MLPerf Inference, whose cuts are not stated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.tables.catalog_names import GPUS
from lab.tables.offline import ENGINE, MOST_TOKENS
from lab.tables.rows import read_records
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.serving.point import ServingPoint
from simulators.workload.precision import precision

MLPERF = "serving_measured/mlperf_inference_v4_1_llm.parquet"
BENCHMARK, SCENARIOS = "llama2-70b-99", ["Offline", "Server"]
PROMPT, OUTPUT = 294, 294
"""Mean lengths of the Llama-2-70B benchmark's questions and answers (OpenOrca)."""

REQUESTS = 2000
ROOM = 1.25
"""Memory over weights from which on a replica needs no further GPU."""


class Submission(NamedTuple):
    """One measured system, as a point of one replica."""

    name: str
    scenario: str
    point: ServingPoint
    gpus: int
    tokens_per_s: float


def mlperf(reference: Path) -> list[Submission]:
    """Return submissions of Llama-2-70B on GPUs we know, the best of each.

    They are taken to run in the narrowest format a GPU multiplies: fp8, and fp4 on Blackwell, whose
    tensor cores NVIDIA's technical blog on the round credits with it (August 2024,
    nvidia-blackwell-platform-sets-new-llm-inference-records-in-mlperf-inference-v4-1).
    """
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in read_records(reference / MLPERF, model=BENCHMARK, scenario=SCENARIOS):
        if row["gpu"] in GPUS and row["tokens_per_s"]:
            key = (row["gpu"], row["scenario"])
            if key not in best or _per_gpu(row) > _per_gpu(best[key]):
                best[key] = row
    return [_submission(row) for row in best.values()]


def _per_gpu(row: Mapping[str, Any]) -> float:
    return float(row["tokens_per_s"] / row["num_gpus"])


def _submission(row: Mapping[str, Any]) -> Submission:
    model, gpu = load_model("llama2_70b"), load_gpu(GPUS[row["gpu"]])
    dtype = "fp4" if "fp4" in gpu.peak_flops else "fp8"
    tp = 1
    while tp * gpu.hbm_bytes < ROOM * model.parameters * precision(dtype).weight_bytes:
        tp *= 2
    point = ServingPoint(
        model=model.name, gpu=gpu.name, tp=tp, runtime="trtllm", chunk_size=MOST_TOKENS,
        dtype=dtype, kv_dtype="fp8", arrivals="closed", clients=REQUESTS, requests=REQUESTS,
        prompt_tokens=PROMPT, output_tokens=OUTPUT, **ENGINE,
    )  # fmt: skip
    name = f"{row['submitter']} {row['system']}"
    return Submission(name, row["scenario"], point, int(row["num_gpus"]), row["tokens_per_s"])
