"""Runs of TensorRT-LLM whose throughput or latency was published, each as a point to simulate.

Offline: NVIDIA's tables with every request queued at once. An engine takes as many requests as its
memory holds, up to 2,048, and 8,192 tokens an iteration or one whole prompt. Of mixtures in 4 bits
the experts are; the KV cache is fp8 where weights are narrower than 16 bits. Options are those
of the pages (NVIDIA/TensorRT-LLM, `perf-overview.md` of 1.0 at 00f3768, of the developer guide at
585c756). Pages before 1.0 leave both limits to `trtllm-bench`, which read or computed them.

Online: latencies under open-loop arrivals. Outputs of one length are as stated; where a table gives
the mean of a conversation's lengths, they are drawn uniformly up to twice that.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, gpu_name, is_gpu, is_model, model_name
from lab.tables.records import known_rows
from lab.tables.rows import Record, read_records
from lab.tables.static_batches import SESSION
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import MXFP4, LanguageModel, load_model
from simulators.core.fields import updated
from simulators.core.folder import read_toml
from simulators.serving.point import WHOLE, ArrivalsConfig, MeasurementConfig, ServingPoint

OFFLINE = "serving_measured/trtllm_perf_overview_offline.parquet"
ONLINE = "serving_measured/trtllm_online_qps.parquet"

FACTS = read_toml(Path(__file__).with_suffix(".toml"))
ENGINE: dict[str, Any] = FACTS["engine"]
MOST_TOKENS = 8192

OFFLINE_RUNTIME = "trtllm_cutlass"
"""The pages name CUTLASS for experts, or nothing, which is the same. On Hopper they name Triton for
gpt-oss; the kernel that TensorRT-LLM's table timed there is not stated."""

BUILD_BYTES = {"fp8": 1.0, "fp4": 0.5}
"""Bytes of a number, as `trtllm-bench` counts; others have two."""

FIXED_OUTPUTS = (16, 256)
"""Output lengths that were requested; others are means over a set of conversations."""

EVENLY = 0.99
"""Spread of lengths drawn from a hundredth of the longest, so that their mean is half of it."""

KEEPS_UP = 0.9
"""Least share of the requested rate that an engine answers unless it is saturated."""


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
    return [PublishedRun(_offline_point(row), row.output_tokens_per_s) for row in rows]


def online(reference: Path) -> list[OnlineRun]:
    """Return the online runs whose models are known."""
    return [
        OnlineRun(
            point=_online_point(row),
            tokens_per_s=row.output_tokens_per_s,
            keeps_up=bool(row.request_rate_qps)
            and row.measured_req_per_s >= KEEPS_UP * row.request_rate_qps,
            ttft_s=row.mean_ttft_ms / 1e3,
            tpot_s=row.mean_itl_ms / 1e3,
        )
        for row in _known(reference, ONLINE)
    ]


def _known(reference: Path, table: str) -> list[Record]:
    return known_rows(read_records(reference / table), table, model=is_model, gpu=is_gpu)


def _offline_point(row: Record) -> ServingPoint:
    """Return the engine with all requests queued at once."""
    model, gpu = model_name(row.model), gpu_name(row.gpu)
    stored = "fp4" if load_model(model).published_experts == MXFP4 else row.precision
    tp, dp = int(row.tp_size), 1
    has_experts = load_model(model).experts > 0
    # Attention of mixtures is data-parallel since release 1.0, later called DEP.
    if row.attention_dp or (has_experts and row.framework_version.startswith("1.")):
        tp, dp = 1, tp
    known = FACTS["requests"]
    requests = known.get(f"{row.isl} {row.osl}", known["otherwise"])
    kv_dtype = _kv_dtype(model, gpu, stored)
    max_batch, tokens = _built(row, load_model(model), gpu, stored, kv_dtype)
    return _point(
        model,
        gpu,
        min(requests, known["enough"]),
        tp=tp,
        pp=int(row.pp_size),
        attention_dp=dp,
        ep=dp if dp > 1 else int(row.ep_size or 1),
        max_batch=max_batch,
        chunk_size=tokens,
        runtime=_runtime(row, OFFLINE_RUNTIME),
        dtype=four_bit_experts(model, gpu) if has_experts and stored == "fp4" else stored,
        kv_dtype=kv_dtype,
        prompt_tokens=row.isl,
        output_tokens=row.osl,
    )


def _built(
    row: Record, model: LanguageModel, gpu: str, stored: str, kv_dtype: str
) -> tuple[int, int]:
    """Return the most requests and tokens of an iteration that an engine was built for."""
    tp, pp, isl, osl = int(row.tp_size), int(row.pp_size), row.isl, row.osl
    built = FACTS["built"]
    if row.framework_version.startswith(built["release"]):
        by_length = built["by_ranks_and_length"].get(f"{tp} {isl + osl}")
        requests, tokens = by_length or built["by_ranks"][str(tp)]
        return requests, tokens
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


def _runtime(row: Record, today: str) -> str:
    """Return the default runtime of a row's release: before PyTorch, TensorRT's session."""
    stated = re.match(r"\d+(\.\d+)+", row["framework_version"])  # a page says "1.x (dev guide)"
    runtime = load_engine("trtllm").runtime_of_release(stated[0] if stated else "")
    return SESSION if runtime == SESSION else today


def _kv_dtype(model: str, gpu: str, stored: str) -> str:
    """Return the precision of the KV cache, which the page leaves alone for gpt-oss on Hopper."""
    if stored == "fp16":
        return "fp16"
    is_mxfp4 = load_model(model).published_experts == MXFP4
    return "bf16" if is_mxfp4 and "fp4" not in load_gpu(gpu).peak_flops else "fp8"


def _online_point(row: Record) -> ServingPoint:
    """Return the engine and its clients; without a rate all requests are queued at once."""
    rate, is_drawn = row.request_rate_qps, row.osl_mean not in FIXED_OUTPUTS
    longest = 2 if is_drawn else 1
    return _point(
        model_name(row.model),
        row.gpu,
        int(row.num_requests),
        tp=int(row.tp_size),
        runtime=_runtime(row, "trtllm"),
        dtype=row.precision,
        kv_dtype=row.precision,
        qps=rate,
        prompt_tokens=longest * int(row.isl_mean),
        output_tokens=longest * int(row.osl_mean),
        **{
            "arrivals.process": "poisson" if rate else "closed",
            "lengths.spread": EVENLY if is_drawn else 0.0,
        },
    )


def _point(model: str, gpu: str, requests: int, **more: Any) -> ServingPoint:
    """Return an engine with so many requests, all queued at once unless `more` says otherwise."""
    point = ServingPoint(
        model=model,
        gpu=gpu,
        requests=requests,
        arrivals=ArrivalsConfig(process="closed", clients=requests),
        measurement=MeasurementConfig(window=WHOLE),
    )
    return updated(point, ENGINE | {"chunk_size": MOST_TOKENS} | more)
