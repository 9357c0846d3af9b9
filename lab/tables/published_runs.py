"""Runs of TensorRT-LLM whose throughput or latency was published, each as a point to simulate.

Offline: NVIDIA's tables with every request queued at once. The number of requests follows from the
lengths (`trtllm-bench`'s recipe); an engine takes what its memory holds, up to 2,048 requests and
8,192 tokens an iteration, or one whole prompt. Of mixtures in 4 bits the experts alone are narrow;
the KV cache is fp8 where weights are narrow. The options are those of the pages themselves
(NVIDIA/TensorRT-LLM, `perf-overview.md` of 1.0 at 00f3768, of the developer guide at 585c756).
Pages before 1.0 leave both limits to `trtllm-bench`, which read them from a file, or computed them.

Online: latencies under requests that arrive by the clock. Outputs of one length are as stated;
where a table gives the mean of a conversation's lengths, they are drawn evenly up to twice that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, gpu_name, is_gpu, is_model, model_name
from lab.tables.records import known_rows
from lab.tables.rows import read_records
from lab.tables.static_batches import SESSION
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.serving.point import NONE, WHOLE, ServingPoint

OFFLINE = "serving_measured/trtllm_perf_overview_offline.parquet"
ONLINE = "serving_measured/trtllm_online_qps.parquet"

MOST_TOKENS = 8192
ENGINE: dict[str, Any] = {
    "scheduler": "trtllm",
    "frontend": NONE,
    "max_batch": 2048,
    "memory_fraction": 0.9,
    "watermark": 0.0,
    "stream_interval": 0,
}
"""TensorRT-LLM as its benchmarks ask it, in process: no server is between, answers come whole."""

OFFLINE_RUNTIME = "trtllm_cutlass"
"""The pages name CUTLASS for experts, or nothing, which is the same. On Hopper they name Triton for
gpt-oss; which kernel TensorRT-LLM's table timed there, it does not say."""

FROM_FILE = "0.14"
BUILT = {1: (2048, 2048), 2: (256, 1024), 4: (2048, 1024), 8: (8192, 16_384)}
BUILT_FOR = {(2, 4096): (2048, 1024)}
"""Most requests and tokens of engines that release 0.14 built, by tensor ranks, and where a length
of prompt and answer has its own (NVIDIA/TensorRT-LLM, `bench/build/benchmark_config.yml` at
8fcf9fc2). These are of Llama-3-70B: the file does not name Llama-3.1, of which all rows are, so
that it was built alike is inferred. Prompts that do not fit are cut (paged context attention is
on)."""

BUILD_BYTES = {"fp8": 1.0, "fp4": 0.5}
"""Of a number, as `trtllm-bench` counts; others have two."""

OFFLINE_REQUESTS = {
    (128, 128): 30_000,
    (128, 4096): 1_500,
    (1000, 2000): 1_500,
    (2048, 2048): 1_500,
    (5000, 500): 1_500,
    (20_000, 2_000): 1_000,
    (8192, 1024): 1_500,
    (1024, 8192): 1_500,
    (32_768, 1024): 1_000,
    (1024, 32_768): 1_000,
}
OTHERWISE = 3_000
"""Requests of an offline run by its lengths, as TensorRT-LLM's performance page states them."""

ENOUGH = 6_000
"""Longer runs have the same throughput."""

FIXED_OUTPUTS = (16, 256)
"""Output lengths that were asked for; others are means of what a conversation set holds."""

EVENLY = 0.99
"""Drawn from a hundredth of the longest, so that their mean is half of it."""

KEEPS_UP = 0.9
"""An engine that answers less than this share of the rate is saturated: requests pile up."""


@dataclass(frozen=True)
class PublishedRun:
    """One measured run."""

    point: ServingPoint
    tokens_per_s: float  # of output, from all its GPUs

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.point.model).experts == 0


@dataclass(frozen=True)
class OnlineRun(PublishedRun):
    """One measured rate of requests; times in seconds."""

    keeps_up: bool
    ttft_s: float
    tpot_s: float


def offline(reference: Path) -> list[PublishedRun]:
    """Return the offline runs whose models are known."""
    rows = _known(reference, OFFLINE)
    return [PublishedRun(_offline_point(row), row["output_tokens_per_s"]) for row in rows]


def online(reference: Path) -> list[OnlineRun]:
    """Return the online runs whose models are known."""
    return [
        OnlineRun(
            point=_online_point(row),
            tokens_per_s=row["output_tokens_per_s"],
            keeps_up=bool(row["request_rate_qps"])
            and row["measured_req_per_s"] >= KEEPS_UP * row["request_rate_qps"],
            ttft_s=row["mean_ttft_ms"] / 1e3,
            tpot_s=row["mean_itl_ms"] / 1e3,
        )
        for row in _known(reference, ONLINE)
    ]


def _known(reference: Path, table: str) -> list[Mapping[str, Any]]:
    rows = read_records(reference / table)
    return known_rows(rows, table, model=is_model, gpu=is_gpu)


def _offline_point(row: Mapping[str, Any]) -> ServingPoint:
    """Return the engine, of which everything is asked at once."""
    model, gpu = model_name(row["model"]), gpu_name(row["gpu"])
    stored = "fp4" if load_model(model).published_experts == MXFP4 else row["precision"]
    tp, dp = int(row["tp_size"]), 1
    # Each GPU attends to requests of its own: mixtures since release 1.0, later called DEP.
    has_experts = load_model(model).experts > 0
    if row["attention_dp"] or (has_experts and row["framework_version"].startswith("1.")):
        tp, dp = 1, tp
    requests = OFFLINE_REQUESTS.get((row["isl"], row["osl"]), OTHERWISE)
    kv_dtype = _kv_dtype(model, gpu, stored)
    max_batch, tokens = _built(row, load_model(model), gpu, stored, kv_dtype)
    return _point(
        model,
        gpu,
        min(requests, ENOUGH),
        tp=tp,
        pp=int(row["pp_size"]),
        attention_dp=dp,
        ep=dp if dp > 1 else int(row["ep_size"] or 1),
        max_batch=max_batch,
        chunk_size=tokens,
        runtime=_runtime(row, OFFLINE_RUNTIME),
        dtype=four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        kv_dtype=kv_dtype,
        prompt_tokens=row["isl"],
        output_tokens=row["osl"],
    )


def _built(
    row: Mapping[str, Any], model: LanguageModel, gpu: str, stored: str, kv_dtype: str
) -> tuple[int, int]:
    """Return the most requests and tokens of an iteration that an engine was built for."""
    tp, pp, isl, osl = int(row["tp_size"]), int(row["pp_size"]), row["isl"], row["osl"]
    if row["framework_version"].startswith(FROM_FILE):
        return BUILT_FOR.get((tp, isl + osl), BUILT[tp])
    if _runtime(row, OFFLINE_RUNTIME) != SESSION:
        return ENGINE["max_batch"], max(MOST_TOKENS, isl)
    gpus, numbers = tp * pp, 2 * model.layers * max(tp, model.kv_heads) * model.head_dim
    left = load_gpu(gpu).hbm_bytes * gpus - model.parameters * BUILD_BYTES.get(stored, 2.0)
    fit = 0.95 * left / (numbers * BUILD_BYTES.get(kv_dtype, 2.0) * (isl + osl))
    max_batch, tokens = tuned(fit / pp, pp, isl / osl)
    return max_batch, max(tokens, isl)


def tuned(fit: float, pp: int, prompt_share: float) -> tuple[int, int]:
    """Return the limits that `trtllm-bench` computes from release 0.15 on.

    So `finetune_setting` in `bench/build/tuning.py`, whose cap of 4,096 requests is there "to avoid
    decoder buffer size becoming too large".

    Args:
        fit: requests of a stage whose KV caches fit.
        pp: stages.
        prompt_share: tokens of a prompt for each of its answer.

    >>> tuned(100.5, 1, 1.0), tuned(1e5, 1, 16.0)
    ((128, 2048), (4096, 32768))
    """
    requests = min(fit, 4096 / pp)
    tokens = min(requests * (1 + prompt_share), 32_768)
    by = 32 if requests < 256 else 128 if requests < 1024 else 256
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    most = max(64, by * math.ceil(requests / by)), max(2048, step * math.ceil(tokens / step))
    return int(most[0]), int(most[1])


def _runtime(row: Mapping[str, Any], today: str) -> str:
    """Return what ran a row's engine by default: before PyTorch, TensorRT's session."""
    stated = re.match(r"\d+(\.\d+)+", row["framework_version"])  # a page says "1.x (dev guide)"
    runtime = load_engine("trtllm").runtime_of_release(stated[0] if stated else "")
    return SESSION if runtime == SESSION else today


def _kv_dtype(model: str, gpu: str, stored: str) -> str:
    """Return the precision of the KV cache, which the page leaves alone for gpt-oss on Hopper."""
    if stored == "fp16":
        return "fp16"
    is_mxfp4 = load_model(model).published_experts == MXFP4
    return "bf16" if is_mxfp4 and "fp4" not in load_gpu(gpu).peak_flops else "fp8"


def _online_point(row: Mapping[str, Any]) -> ServingPoint:
    """Return the engine and its clients; without a rate everything is asked at once."""
    rate, drawn = row["request_rate_qps"], row["osl_mean"] not in FIXED_OUTPUTS
    longest = 2 if drawn else 1
    return _point(
        model_name(row["model"]),
        row["gpu"],
        int(row["num_requests"]),
        tp=int(row["tp_size"]),
        runtime=_runtime(row, "trtllm"),
        dtype=row["precision"],
        kv_dtype=row["precision"],
        arrivals="poisson" if rate else "closed",
        qps=rate,
        prompt_tokens=longest * int(row["isl_mean"]),
        output_tokens=longest * int(row["osl_mean"]),
        length_spread=EVENLY if drawn else 0.0,
    )


def _point(model: str, gpu: str, requests: int, **more: Any) -> ServingPoint:
    """Return an engine of which so many requests are asked, at once unless told otherwise."""
    usual = {"chunk_size": MOST_TOKENS, "arrivals": "closed"}
    settings = ENGINE | usual | more
    return ServingPoint(
        model=model, gpu=gpu, clients=requests, requests=requests, window=WHOLE, **settings
    )
