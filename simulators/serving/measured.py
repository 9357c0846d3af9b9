"""Real runs of vLLM, request by request, against ours of the same requests on the same GPU.

LLMServingSim published them: vLLM 0.19.0 with its prefix cache on, which is not modelled here, 300
requests with their arrivals. Nothing in this room was fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.arrivals import Requests
from simulators.serving.point import ServingPoint
from simulators.serving.replica import ARRIVAL, COMPLETED, FIRST_TOKEN
from simulators.serving.run import run_of

REQUESTS, RUNS = "serving_modern/vllm_requests.parquet", "serving_modern/vllm_runs_meta.parquet"
GPUS = {"RTX4090": "rtx_4090", "RTXPRO6000": "rtx_pro_6000"}
MODELS = {"meta-llama/Llama-3.1-8B": "llama3_1_8b", "Qwen/Qwen3-32B": "qwen3_32b"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
LIMIT = 0.10
"""What is aimed at: the mean TTFT and the median TPOT within a tenth."""


def measured_checks(reference: Path) -> Iterator[Check]:
    """Yield the errors of mean TTFT and median TPOT of each run whose model and GPU are known."""
    if missing := [name for name in (REQUESTS, RUNS) if not (reference / name).is_file()]:
        yield Check(name="vllm measured", value=None, note=f"absent: {', '.join(missing)}")
        return
    for run in pq.read_table(reference / RUNS).to_pylist():
        known = run["gpu"] in GPUS and run["model"] in MODELS and run["dp"] == 1
        if not known:
            yield Check(name=f"vllm {run['run']}", value=None, note="not modelled")
            continue
        rows = pq.read_table(reference / REQUESTS, filters=[("run", "=", run["run"])])
        if len(rows) == 0:
            yield Check(name=f"vllm {run['run']}", value=None, note="absent: its requests")
            continue
        yield from _run_checks(run, rows.sort_by("queued_s").to_pydict())


def _run_checks(run: Mapping[str, Any], rows: Mapping[str, list[Any]]) -> Iterator[Check]:
    """Yield both errors of one run; TTFT counts from when the engine had the request."""
    column = {name: np.array(values) for name, values in rows.items()}
    queued, first, last = (column[name] for name in ("queued_s", "first_token_s", "last_token_s"))
    asked = Requests(
        queued - queued[0],
        column["input_toks"],
        column["output_toks"],
        np.zeros((queued.size, 2)),
    )
    done = run_of(_point(run), asked)
    times = done.world.times
    ttft = (times[:, FIRST_TOKEN] - times[:, ARRIVAL]).mean(), (first - queued).mean()
    tpot = (
        _median_tpot(times[:, FIRST_TOKEN], times[:, COMPLETED], asked),
        _median_tpot(first, last, asked),
    )
    note = "calibrated" if done.bill.calibrated else "kernels not calibrated on this GPU"
    for name, (ours, theirs) in (("mean TTFT", ttft), ("median TPOT", tpot)):
        error = float(abs(ours / theirs - 1.0))
        yield Check(
            name=f"vllm {run['run']} {name}",
            value=error,
            limit=LIMIT,
            ok=error <= LIMIT,
            rows=queued.size,
            note=f"{ours:.4g} s of {theirs:.4g} s; {note}",
        )


def _point(run: Mapping[str, Any]) -> ServingPoint:
    """Return the deployment a run describes."""
    dtype = DTYPES[run["dtype"]]
    return ServingPoint(
        model=MODELS[run["model"]],
        gpu=GPUS[run["gpu"]],
        tp=run["tp"],
        scheduler="vllm_v1",
        chunk_size=run["max_num_batched_tokens"],
        max_batch=run["max_num_seqs"],
        memory_fraction=run["mem_util"],
        watermark=0.0,
        dtype=dtype,
        kv_dtype=dtype,
    )


def _median_tpot(first: Floats, last: Floats, asked: Requests) -> float:
    return float(np.median((last - first) / (asked.output_tokens - 1)))
