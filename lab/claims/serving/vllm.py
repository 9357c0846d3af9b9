"""Real runs of vLLM, request by request, against ours of the same requests on the same GPU.

LLMServingSim published them: vLLM 0.19.0 with its prefix cache on, of which only what preempted
requests leave there is modelled, 300 requests with their arrivals. Nothing was fitted to them. Ours
run as `runtime: vllm`; times are the engine's own, from when it queued a request, so no server
stands before it.

Where a run says how many KV blocks it had, that is what it gets: the share of memory it states
beside leaves activations out. Not judged are those whose chunks and decodes attend in one kernel,
which is not the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.claims.lines import absent, answered, at_most
from lab.tables.catalog_names import GPUS
from lab.tables.kernels.engine_layers import MODELS
from lab.tables.rows import read_records, read_table, require
from simulators.catalog.cluster import AUTO
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.core.levels import UNMODELLED
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.engine.limits import kv_blocks
from simulators.serving.engine.replica import ARRIVAL, COMPLETED, FIRST_TOKEN
from simulators.serving.point import BATCH, CACHED, NONE, RECOMPUTE, UNIFIED, ServingPoint
from simulators.serving.run import run_of
from simulators.workload.llm.memory import kv_bytes_per_token

NEEDS = (RUNS,) = ("serving_modern/vllm_runs_meta.parquet",)
REQUESTS = (
    "serving_modern/vllm_requests.parquet",
    "serving_modern/vllm_requests_qwen3_32b.parquet",
)
COLUMNS = ("queued_s", "first_token_s", "last_token_s", "input_toks", "output_toks")
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
CLUSTERS = {"RTXPRO6000": "pcie_through_host"}
"""By GPU, the server of these runs. Its owners timed NCCL between the boards apart from them: large
all-reduces at 15.9 GB/s, and at 35 once they had disabled access control services and the IOMMU,
months after these runs (casys-kaist/LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml)."""

LIMIT = 8.0
"""Percent that are asked of dense models: of the mean TTFT, the median TPOT and the throughput."""

LIMIT_OF_RANKS = 10.0
"""The same of a mixture under data parallelism, whose ranks step together."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of mean TTFT, median TPOT and throughput of each run of a known model."""
    for run in read_records(reference / RUNS):
        if run["gpu"] not in GPUS or run["model"] not in MODELS:
            yield absent(f"vllm {run['run']}", "not modelled")
            continue
        found = answered(f"vllm {run['run']}", [run], partial(_run_checks, reference))
        yield from (line for lines in (*found.answers, found.lines) for line in lines)


def _requests(reference: Path, run: str) -> Mapping[str, NDArray[Any]] | None:
    """Return the columns of a run's requests in the order in which they were queued, if here."""
    for table in REQUESTS:
        if (reference / table).is_file() and len(rows := read_table(reference / table, run=run)):
            require(rows, COLUMNS, table)
            columns = rows.sort_by("queued_s").to_pydict()
            return {name: np.array(values) for name, values in columns.items()}
    return None


def _run_checks(reference: Path, run: Mapping[str, Any]) -> list[Check]:
    """Return the errors of one run; TTFT counts from when the engine had the request."""
    column = _requests(reference, run["run"])
    if column is None:
        return [absent(f"vllm {run['run']}", "absent: its requests")]
    lines = []
    queued = column["queued_s"]
    lengths = column["input_toks"], column["output_toks"]
    asked = Requests(queued - queued[0], *lengths, np.zeros((queued.size, 2)))
    theirs = _figures(queued, column["first_token_s"], column["last_token_s"], asked)
    for how, called in ((UNIFIED, ""), (BATCH, ", two launches")):
        done = run_of(replace(point_of_run(run), mixed_step=how), asked)
        times = done.state.times
        ours = _figures(times[:, ARRIVAL], times[:, FIRST_TOKEN], times[:, COMPLETED], asked)
        asked_of = LIMIT if run["dp"] == 1 else LIMIT_OF_RANKS
        limit = asked_of if how == UNIFIED else None
        note = f"{done.tables[0].shares[UNMODELLED]:.0%} of the time by other GPUs' numbers"
        for name, unit in (("mean TTFT", "s"), ("median TPOT", "s"), ("throughput", "1/s")):
            error = 100.0 * float(abs(ours[name] / theirs[name] - 1.0))
            said = f"{ours[name]:.4g} {unit} of {theirs[name]:.4g} {unit}; {note}"
            line = f"vllm {run['run']} {name}{called}"
            lines.append(at_most(line, error, limit, queued.size, said))
    return lines


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
        watermark=0.0,
        preemption=CACHED if run["prefix_caching"] else RECOMPUTE,
        dtype=dtype,
        kv_dtype=dtype,
        runtime="vllm",
        frontend=NONE,
    )
    blocks = run["num_gpu_blocks"]
    if blocks is None:
        return point
    hardware = deployment_of(point).hardware
    replica = hardware.replica
    known = kv_blocks(
        hardware,
        memory_fraction=point.memory_fraction,
        block_size=point.block_size,
        tokens=point.chunk_size,
        rows=point.max_batch,
    )
    block_bytes = point.block_size * kv_bytes_per_token(
        replica.model, replica.cut, replica.kv_dtype
    )
    more = (blocks - known) * block_bytes / replica.gpu.hbm_bytes
    return replace(point, memory_fraction=point.memory_fraction + more)
