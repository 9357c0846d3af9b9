"""Real runs of vLLM, request by request, beside ours of the same requests on the same GPU.

LLMServingSim published them: vLLM 0.19.0, 300 requests with their arrivals. Nothing was fitted to
them. Of the prefix cache only what preempted requests leave there is modelled: the tables do not
hold what prompts have in common. Times are the engine's own, from when it queued a request, so
there is no front end. A run that states its number of KV blocks has that many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lab.claims.predictions import predict
from lab.tables.catalog_names import GPUS
from lab.tables.kernels.engine_layers import MODELS
from lab.tables.rows import read_records, read_table
from simulators.catalog.cluster import AUTO
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.engine.limits import kv_blocks
from simulators.serving.engine.replica import ARRIVAL, COMPLETED, FIRST_TOKEN
from simulators.serving.point import (
    CACHED,
    NONE,
    RECOMPUTE,
    CacheConfig,
    ClientConfig,
    ServingPoint,
)
from simulators.serving.run import run_of
from simulators.workload.llm.memory import kv_bytes_per_token

RUNS = "serving_modern/vllm_runs_meta.parquet"
REQUESTS = (
    "serving_modern/vllm_requests.parquet",
    "serving_modern/vllm_requests_qwen3_32b.parquet",
)
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
CLUSTERS = {"RTXPRO6000": "pcie_through_host"}
"""By GPU, the server of these runs. Its owners timed NCCL between the GPUs apart from them: large
all-reduces at 15.9 GB/s, and at 35 once they had disabled access control services and the IOMMU,
months after these runs (casys-kaist/LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml)."""


def runs(reference: Path) -> pl.DataFrame:
    """Return mean TTFT, median TPOT and throughput of each run."""

    def answer(run: Mapping[str, Any]) -> list[dict[str, Any]]:
        if run["gpu"] not in GPUS or run["model"] not in MODELS:
            raise UserError(f"{run['model']} on {run['gpu']} is not in the catalog")
        column = _requests(reference, run["run"])
        queued = column["queued_s"]
        lengths = column["input_toks"], column["output_toks"]
        asked = Requests(queued - queued[0], *lengths, np.zeros((queued.size, 2)))
        times = run_of(point_of_run(run), asked).state.times
        ours = _figures(times[:, ARRIVAL], times[:, FIRST_TOKEN], times[:, COMPLETED], asked)
        theirs = _figures(queued, column["first_token_s"], column["last_token_s"], asked)
        return [
            {"metric": metric, "predicted": ours[metric], "measured": measured}
            for metric, measured in theirs.items()
        ]

    return predict(read_records(reference / RUNS), answer, lambda run: {"run": run["run"]})


def _requests(reference: Path, run: str) -> Mapping[str, NDArray[Any]]:
    """Return the columns of a run's requests in the order in which they were queued."""
    for table in REQUESTS:
        if (reference / table).is_file() and len(rows := read_table(reference / table, run=run)):
            columns = rows.sort_by("queued_s").to_pydict()
            return {name: np.array(values) for name, values in columns.items()}
    raise UserError(f"there are no requests of {run}")


def _figures(arrived: Floats, first: Floats, last: Floats, asked: Requests) -> dict[str, float]:
    """Return what is compared of a run; the rate is of output tokens, to the last one."""
    return {
        "mean TTFT": float((first - arrived).mean()),
        "median TPOT": float(np.median((last - first) / (asked.output_tokens - 1))),
        "throughput": float(asked.output_tokens.sum() / (last.max() - arrived.min())),
    }


def point_of_run(run: Mapping[str, Any]) -> ServingPoint:
    """Return the deployment a run describes."""
    dtype = DTYPES[run["dtype"]]
    point = ServingPoint(
        model=MODELS[run["model"]],
        gpu=GPUS[run["gpu"]],
        cluster=CLUSTERS.get(run["gpu"], AUTO),
        tp=run["tp"],
        ep=run["dp"] if run["ep"] else 1,
        attention_dp=run["dp"],
        scheduler="vllm_v1",
        chunk_size=run["max_num_batched_tokens"],
        max_batch=run["max_num_seqs"],
        max_context=run["max_model_len"] or 0,
        memory_fraction=run["mem_util"],
        cache=CacheConfig(watermark=0.0, preemption=CACHED if run["prefix_caching"] else RECOMPUTE),
        dtype=dtype,
        kv_dtype=dtype,
        runtime="vllm",
        client=ClientConfig(frontend=NONE),
    )
    blocks = run["num_gpu_blocks"]
    if blocks is None:
        return point
    hardware = deployment_of(point).hardware
    replica = hardware.replica
    known = kv_blocks(
        hardware,
        memory_fraction=point.memory_fraction,
        block_size=point.cache.block_size,
        tokens=point.chunk_size,
        rows=point.max_batch,
    )
    block_bytes = point.cache.block_size * kv_bytes_per_token(
        replica.model, replica.cut, replica.kv_dtype
    )
    more = (blocks - known) * block_bytes / replica.gpu.hbm_bytes
    return replace(point, memory_fraction=point.memory_fraction + more)
