"""Throughput of TensorRT-LLM with every request queued at once, as NVIDIA publishes it.

The number of requests follows from the lengths (`trtllm-bench`'s recipe); an engine takes what its
memory holds, up to 2,048 requests and 8,192 tokens an iteration, or one whole prompt. Of mixtures
in 4 bits the experts alone are narrow; the KV cache is fp8 where weights are narrow. The options
are those of the pages themselves (NVIDIA/TensorRT-LLM, `perf-overview.md` of 1.0 at 00f3768, of the
developer guide at 585c756).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import MODELS, four_bit_experts, gpu_name, is_gpu
from lab.tables.known import known_rows
from lab.tables.rows import read_records
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, load_model
from simulators.serving.point import NONE, ServingPoint

OFFLINE = "serving_measured/trtllm_perf_overview_offline.parquet"

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

MOST_TOKENS = 8192
ENGINE: dict[str, Any] = {
    "scheduler": "trtllm", "frontend": NONE, "max_batch": 2048, "memory_fraction": 0.9,
    "watermark": 0.0,
}  # fmt: skip
"""TensorRT-LLM as its benchmarks ask it, in process: no server is between."""


@dataclass(frozen=True)
class Throughput:
    """One measured throughput."""

    name: str
    point: ServingPoint
    tokens_per_s: float

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.point.model).experts == 0


def offline(reference: Path) -> list[Throughput]:
    """Return the offline runs of the reference folder."""
    table = read_records(reference / OFFLINE)
    rows = known_rows(table, OFFLINE, model=MODELS.__contains__, gpu=is_gpu)
    return [
        Throughput(
            name=f"{row['model']} {row['gpu']} {row['precision']} tp{row['tp_size']}",
            point=_point(row),
            tokens_per_s=row["output_tokens_per_s"],
        )
        for row in rows
    ]


def _point(row: Mapping[str, Any]) -> ServingPoint:
    """Return the engine, of which everything is asked at once."""
    model, gpu = MODELS[row["model"]], gpu_name(row["gpu"])
    stored = "fp4" if load_model(model).published_experts == MXFP4 else row["precision"]
    tp, dp = int(row["tp_size"]), 1
    # Each GPU attends to requests of its own: mixtures since release 1.0, later called DEP.
    has_experts = load_model(model).experts > 0
    if row["attention_dp"] or (has_experts and row["framework_version"].startswith("1.")):
        tp, dp = 1, tp
    requests = min(REQUESTS.get((row["isl"], row["osl"]), OTHERWISE), ENOUGH)
    return ServingPoint(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=int(row["pp_size"]),
        attention_dp=dp,
        ep=dp if dp > 1 else int(row["ep_size"] or 1),
        chunk_size=max(MOST_TOKENS, row["isl"]),
        clients=requests,
        requests=requests,
        runtime=RUNTIME,
        dtype=four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        kv_dtype=_kv_dtype(model, gpu, stored),
        arrivals="closed",
        prompt_tokens=row["isl"],
        output_tokens=row["osl"],
        **ENGINE,
    )


def _kv_dtype(model: str, gpu: str, stored: str) -> str:
    """Return the precision of the KV cache, which the page leaves alone for gpt-oss on Hopper."""
    if stored == "fp16":
        return "fp16"
    is_mxfp4 = load_model(model).published_experts == MXFP4
    return "bf16" if is_mxfp4 and "fp4" not in load_gpu(gpu).peak_flops else "fp8"
