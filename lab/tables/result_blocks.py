"""Results of `vllm bench serve` and `sglang.bench_serving` printed in documentation, as points.

Options are those of the launch command beside a result; of what it does not say, the documented
default: of vLLM (`EngineArgs`) and SGLang (`server_args.py`) by a GPU's memory, of TensorRT-LLM's
server by its manual. All three keep a prefix cache unless told not to, in which preempted requests
find what they had. A precision is that of the checkpoint. Results that cannot be told (`untold`)
are counted by the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, gpu_name, is_gpu, is_model, model_name
from lab.tables.rows import read_records
from lab.tables.serving.printed_lengths import printed_lengths
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import MXFP4, load_model
from simulators.composition.replica import FRAMEWORKS, NOTHING
from simulators.serving.point import (
    CACHED,
    CLOSED,
    MTP,
    POISSON,
    RECOMPUTE,
    WHOLE,
    ServingPoint,
)
from simulators.workload.llm.memory import activation_bytes
from simulators.workload.llm.parallelism import Parallelism

BLOCKS = "serving_measured/serving_result_blocks.parquet"

GENERIC = "bench command is the generic one of the page: isl/osl/dataset arguments set to null, "
GENERIC += "use mean_*_tokens"
"""A remark that takes nothing from what was measured; any other does."""

FP8 = ("deepseek_v3", "deepseek_v3_2", "kimi_k2_5", "minimax_m2_5")
"""Models whose checkpoints are scaled in blocks of 8 bits (`quantization_config`)."""

FOUR_BITS = ("moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2.5")
"""Repositories whose experts have four."""

IMAGES = ("VL", "4.5V")
"""In names of models that were asked about images, whose encoder is no part of ours."""

LARGE = 70 * 2**30
"""Memory from which on vLLM takes bigger batches, on an A100 apart."""

HUGE = 160 * 2**30
"""The same of SGLang."""

MIB = 2.0**20

SKEW = 0.5
"""How much tokens of real text prefer some experts, for which the ranks that hold others wait: a
choice, that of `spaces/deepseek_v3_ep.yaml`."""

DRAWN_BYTES = 4.0 + 8.0 + 4.0
"""Of a logit while tokens are drawn: sorted, its place before, and its probability
(`topk_topp_sampler.py` of vLLM, without FlashInfer; `_dummy_sampler_run` asks for both limits)."""

UNMODELLED = r"--decode-context-parallel-size|-dcp\b"
"""Options that we have no axis for: keys and values of a request that are cut over ranks."""

ASKED_MODEL = r"--model[=\s]+(\S+)"
"""Whom a client asks."""

STATED_TP = r"Tensor Parallelism: (\d+)"
"""What a page says of the deployment beside its launch command."""

HEADED_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT"}
HEADED_SEATS = r"Seqs (\d+)"
"""What headings call engines and their requests at a time."""

AHEAD = r"--async-scheduling\b"
"""What vLLM of 2025 is told so that it prepares an iteration during the one before."""

DRAFTED = r'"method":"mtp","num_speculative_tokens":(\d+)'
"""What vLLM is told where a model drafts by a head of its own."""

SEATS_WITH_DRAFTS = 48
"""SGLang's requests at a time where tokens are drafted, unless it is told (`server_args.py`)."""

TODAYS = {"trtllm": "trtllm_cutlass"}
"""Runtimes of engines launched without options, where no release of their table has these."""

BEFORE_RELEASES = "0.0.0"
"""Version of builds from source, which say no release: their documentation is of 2025."""

DECODES = {("sglang_0_5_8", "triton", True): "triton_8"}
"""Kernels of decodes by runtime, attention backend, and whether attention is latent."""

NARROW_CHOSEN = {"hopper": ("vllm",), "blackwell": ("vllm", "sglang")}
"""Engines that keep the keys that an indexer chooses among in 8 bits unless they are told another
precision, by architecture (vllm-project/vllm, pull request 25988; SGLang, `deepseek_v32.md`)."""

AT_ONCE = 1000.0
"""Requests a second that are all requests at once."""

KEEPS_BUSY = 0.7
"""Share of its clients that a closed loop keeps in flight, by Little's law; with fewer something
else set the load."""

DEGREE = r"(?:^|\s)--?{}(?:[-_]size)?[=\s]+(\d+)"
"""How launch commands of all engines write a degree of parallelism."""


@dataclass(frozen=True)
class Block:
    """One printed result; times in seconds."""

    point: ServingPoint
    framework: str
    path: str
    line: int
    tpot_s: float
    ttft_s: float
    tokens_per_s: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    options: Mapping[str, tuple[Any, ...]]  # what the launch command says, by kind
    decode: str = ""  # the kernel that was asked for, if nothing else may run

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.point.model}.{self.point.gpu}"


OPTIONS = {
    "engine": ("framework", "framework_version", "attention_backend", "moe_backend"),
    "parallelism": ("tp", "dp", "ep", "pp", "expert_parallel_flag", "dp_attention_flag"),
    "quantisation": ("model", "kv_dtype"),
    "batches": ("chunk_tokens", "max_running", "mem_fraction"),
    "prefix cache": ("prefix_cache_off_flag",),
    "speculation": ("spec_algorithm", "spec_steps", "spec_config"),
}
"""Columns that a launch command fills, by kind."""


def blocks(reference: Path) -> tuple[list[Block], list[str]]:
    """Return the results that can be told, and why each of the others cannot."""
    told: list[Block] = []
    reasons: list[str] = []
    for row in read_records(reference / BLOCKS):
        if reason := untold(row):
            reasons.append(reason)
        else:
            told.append(_block(row))
    return told, reasons


def untold(row: Mapping[str, Any]) -> str:
    """Return why a result cannot be told; empty where it can."""
    needed = ("mean_input_tokens", "mean_output_tokens", "duration_s", "tpot_mean_s", "ttft_mean_s")
    rules = {
        "unknown engine": row["framework"] not in FRAMEWORKS,
        "unknown model": not is_model(row["model"]),
        "unknown GPU": not is_gpu(row["gpu"] or ""),
        "images": any(word in row["model"] for word in IMAGES),
        "speculation": bool(row["speculative"]) and not _drafts(row),
        "prompts apart from answers": bool(row["disagg"]),
        "no launch command": not row["launch_command"],
        "an option we have no axis for": bool(re.search(UNMODELLED, row["launch_command"] or "")),
        "another model or cut is named beside": _is_of_another(row),
        "its heading is of another launch": _is_headed_otherwise(row),
        "numbers are missing": not all(row[name] for name in needed),
        "a remark on the numbers": (row["flags"] or "") not in ("", GENERIC),
    }
    reason = next((why for why, holds in rules.items() if holds), "")
    return reason or ("" if _load(row) else "the load is not told")


def _is_of_another(row: Mapping[str, Any]) -> bool:
    """Say whether a launch command is of another model than was asked, or cut in other parts."""
    asked = re.search(ASKED_MODEL, row["bench_command"] or "")
    stated = re.search(STATED_TP, row["environment_text"] or "")
    if stated and row["tp"] and int(stated[1]) != row["tp"]:
        return True
    if not (asked and is_model(asked[1]) and is_model(row["model"])):
        return False
    return model_name(asked[1]) != model_name(row["model"])


def _is_headed_otherwise(row: Mapping[str, Any]) -> bool:
    """Say whether a heading names another engine, or other seats, than the launch command above.

    Pages that print one command and change it in words only have such results.
    """
    heading = row["heading"] or ""
    named = [engine for engine, name in HEADED_ENGINES.items() if name in heading]
    seats = re.search(HEADED_SEATS, heading)
    is_of_other = bool(named) and row["framework"] not in named
    return is_of_other or bool(seats and int(seats[1]) != row["max_running"])


def _drafts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what drafts tokens; empty where nothing does, or it is not told.

    SGLang calls a model's own head EAGLE, as it does heads trained apart: models that have one of
    their own name no other.
    """
    told = re.search(DRAFTED, row["spec_config"] or "")
    count = int(told[1]) if told else row["spec_steps"]
    own = told or row["spec_algorithm"] == "EAGLE"
    if not (count and own and row["spec_topk"] in (None, 1)):
        return {}
    return {"speculation": MTP, "draft_tokens": int(count)}


def _load(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return who asks; empty where what was in flight belies it."""
    requests = int(row["successful_requests"])
    rate = row["request_rate_arg"] or row["request_rate_printed"]
    clients = row["max_concurrency_arg"] or row["max_concurrency_printed"]
    if rate and 0 < (rate := float(rate)) < AT_ONCE and not clients:
        return {"arrivals": POISSON, "qps": rate, "requests": requests}
    spent_s = row["ttft_mean_s"] + row["tpot_mean_s"] * (row["mean_output_tokens"] - 1.0)
    in_flight = spent_s * requests / row["duration_s"]
    if clients and in_flight < KEEPS_BUSY * clients:
        return {}
    seats = int(clients or requests)
    return {"arrivals": CLOSED, "clients": seats, "requests": max(requests, seats)}


def _block(row: Mapping[str, Any]) -> Block:
    model, gpu = model_name(row["model"]), load_gpu(gpu_name(row["gpu"]))
    framework = row["framework"]
    engine = load_engine(framework)
    cut = _cut(row, model)
    chunk, seats = _batch(framework, gpu)
    chunk = int(row["chunk_tokens"] or chunk)
    if framework == "sglang":  # cut among the groups that attend apart (`server_args.py`)
        chunk //= cut.get("attention_dp", 1)
    fraction = float(row["mem_fraction"] or 0.0)  # 0: not told
    few = SEATS_WITH_DRAFTS if framework == "sglang" and row["speculative"] else 0
    point = ServingPoint(
        model=model,
        gpu=gpu.name,
        scheduler=engine.schedulers[0],
        runtime=_runtime(framework, row["framework_version"]),
        chunk_size=chunk,
        max_batch=int(row["max_running"] or few or seats or engine.max_sequences),
        memory_fraction=fraction or engine.defaults.gpu_memory_fraction,
        watermark=0.0,
        preemption=RECOMPUTE if row["prefix_cache_off_flag"] else CACHED,
        dtype=_dtype(row, model, gpu),
        kv_dtype=_kv_dtype(row, model, gpu),
        window=WHOLE,
        **_drafts(row),
        **printed_lengths(row),
        **cut,
        **_load(row),
    )
    if framework == "sglang":
        point = replace(point, memory_fraction=_with_activations(point, gpu, fraction))
    if framework == "vllm":
        point = replace(point, memory_fraction=_without_drawing(point, gpu))
    return Block(
        point=point,
        framework=framework,
        path=row["path"],
        line=int(row["line"]),
        tpot_s=row["tpot_mean_s"],
        ttft_s=row["ttft_mean_s"],
        tokens_per_s=row["output_tokens_per_s"],
        ttft_p99_s=row["ttft_p99_s"],
        tpot_p99_s=row["tpot_p99_s"],
        options={kind: tuple(row[name] for name in names) for kind, names in OPTIONS.items()}
        | {"host": (bool(re.search(AHEAD, row["launch_command"])),)},
        decode=DECODES.get(
            (point.runtime, row["attention_backend"], load_model(model).is_latent), ""
        ),
    )


def _with_activations(point: ServingPoint, gpu: Gpu, static: float) -> float:
    """Return SGLang's memory fraction as ours, which holds activations besides what its does."""
    cut = Parallelism(tp=point.tp, pp=point.pp, ep=point.ep, attention_dp=point.attention_dp)
    tokens, rows = float(point.chunk_size), float(point.max_batch)
    working = activation_bytes(load_model(point.model), cut, point.dtype, tokens, rows)
    return (static or _static_fraction(point, gpu)) + float(working) / gpu.hbm_bytes


def _without_drawing(point: ServingPoint, gpu: Gpu) -> float:
    """Return vLLM's memory fraction without what its first pass, which it measures, draws from.

    For as many sequences as run at a time, every rank sorts the logits of the whole vocabulary.
    """
    drawn = DRAWN_BYTES * point.max_batch * load_model(point.model).vocab
    return point.memory_fraction - drawn / gpu.hbm_bytes


def _static_fraction(point: ServingPoint, gpu: Gpu) -> float:
    """Return the share of a GPU that SGLang gives to weights and cache unless it is told.

    It reserves so many MiB for activations of prompts, CUDA graphs, wide groups, attention of ranks
    that pad, and drafts (`_handle_gpu_memory_settings` of `server_args.py`, since 0.5.3).
    """
    ranks, width = point.attention_dp, point.attention_dp * point.tp
    graphs = 512.0 if width >= 4 or gpu.hbm_bytes > HUGE else 256.0
    reserved = 512.0 + 1.5 * max(2048.0, point.chunk_size * ranks) + 2.0 * graphs
    reserved += 1024.0 * width * point.pp / 8.0
    if ranks > 1:
        reserved += ranks * graphs * (4.5 if graphs > 300.0 else 3.0)
    reserved = max(reserved, 10_240.0)
    if point.speculation != NOTHING:
        reserved += 2048.0
    return 1.0 - reserved * MIB / gpu.hbm_bytes


def _runtime(framework: str, version: str | None) -> str:
    """Return the runtime of an engine's release, launched without options."""
    if framework in TODAYS:
        return TODAYS[framework]
    release = "2025-12-01" if (version or "").startswith(BEFORE_RELEASES) else version
    return load_engine(framework).runtime_of_release(release or "")


def _batch(framework: str, gpu: Gpu) -> tuple[int, int]:
    """Return an engine's default tokens of an iteration and seats; 0: as its sheet says."""
    if framework == "sglang":
        return 16_384 if gpu.hbm_bytes > HUGE else 8192, 0
    if framework == "vllm" and (gpu.hbm_bytes < LARGE or gpu.name.startswith("a100")):
        return 2048, 256
    return 8192, 0


def _dtype(row: Mapping[str, Any], model: str, gpu: Gpu) -> str:
    """Return the precision of a checkpoint on a GPU; one without 8 bits widens them as it reads."""
    sheet = load_model(model)
    if sheet.published_experts == MXFP4:
        return four_bit_experts(model, gpu.name)
    if row["model"] in FOUR_BITS:
        return "bf16+w4a16"
    if row["model_name_precision_hint"] == "fp8" or model in FP8:
        if "fp8" not in gpu.peak_flops:
            return "w8a16"
        return "fp8_block" if sheet.experts else "fp8"
    return "bf16"


def _kv_dtype(row: Mapping[str, Any], model: str, gpu: Gpu) -> str:
    """Return the precision of the cache; where nobody says, that of weights' activations.

    Engines that keep chosen keys in 8 bits by themselves are `NARROW_CHOSEN`.
    """
    chooses = load_model(model).index_top_k > 0
    usual = "fp8" if chooses and row["framework"] in NARROW_CHOSEN.get(gpu.architecture, ()) else ""
    return "fp8" if (row["kv_dtype"] or usual).startswith("fp8") else "bf16"


def _cut(row: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the cut of a launch command; one GPU where it names none."""
    tp, dp, pp, ep = (_degree(row, name) for name in ("tp", "dp", "pp", "ep"))
    has_experts = load_model(model).experts > 0
    if row["dp_attention_flag"]:  # of the tp GPUs, so many groups attend apart
        tp = max(1, tp // dp)
    elif not has_experts:
        return {"tp": tp, "pp": pp, "replicas": dp}
    if row["expert_parallel_flag"] and ep == 1:  # vLLM's flag: over all
        ep = tp * dp
    skew = SKEW if ep > 1 else 0.0
    return {"tp": tp, "pp": pp, "attention_dp": dp, "ep": ep, "routing_skew": skew}


def _degree(row: Mapping[str, Any], name: str) -> int:
    """Return a degree of parallelism: of its column, else of the launch command, else 1."""
    written = re.search(DEGREE.format(name), row["launch_command"])
    return int(row[name] or (written[1] if written else 1))
