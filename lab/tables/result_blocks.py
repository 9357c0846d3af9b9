"""Results of `vllm bench serve` and `sglang.bench_serving` printed in documentation, as points.

`result_blocks.toml` holds facts and assumptions. Options are those of the launch command beside a
result, else the documented default. `reason_to_skip` names the reason of each unusable result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.tables.deployments import dtype_of
from lab.tables.published import EVENLY, PublishedRun
from lab.tables.records import gpu_name, is_gpu, is_model, model_name
from lab.tables.rows import Record, read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import MXFP4, load_model
from simulators.composition.replica import FRAMEWORKS, NOTHING
from simulators.core.fields import point_from
from simulators.core.folder import read_toml
from simulators.serving import options as options_of
from simulators.serving.demand.requests import bench_serving_lengths, scaled_to_mean, token_counts
from simulators.serving.point import ServingPoint
from simulators.workload.llm.memory import activation_bytes
from simulators.workload.llm.parallelism import Parallelism

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))
BLOCKS: str = FACTS.table
PATTERNS: Mapping[str, str] = FACTS.patterns
LENGTHS = Record(FACTS.lengths)
MIB = 2.0**20


@dataclass(frozen=True)
class ResultBlock(PublishedRun):
    """One printed result; times in seconds."""

    framework: str
    path: str
    line: int
    tpot_s: float
    ttft_s: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    options: Mapping[str, tuple[Any, ...]]  # of the launch command, by kind
    decode: str = ""  # the only decode kernel that may run, if one was configured


def blocks(reference: Path) -> tuple[list[ResultBlock], list[str]]:
    """Return the usable results, and the reason to skip each other result."""
    usable: list[ResultBlock] = []
    reasons: list[str] = []
    for row in read_records(reference / BLOCKS):
        if reason := reason_to_skip(row):
            reasons.append(reason)
        else:
            usable.append(_block(row))
    return usable, reasons


def reason_to_skip(row: Mapping[str, Any]) -> str:
    """Return the reason to skip a result; empty without one."""
    launch = row["launch_command"] or ""
    rules = {
        "unknown engine": row["framework"] not in FRAMEWORKS,
        "unknown model": not is_model(row["model"]),
        "unknown GPU": not is_gpu(row["gpu"] or ""),
        "images": any(word in row["model"] for word in FACTS.image_words),
        "speculation": bool(row["speculative"]) and not _drafts(row),
        "prompts apart from answers": bool(row["disagg"]),
        "no launch command": not launch,
        "an option we have no axis for": bool(re.search(PATTERNS["unmodelled"], launch)),
        "another model or cut is named beside": _names_another(row),
        "its heading is of another launch": _has_other_heading(row),
        "numbers are missing": not all(row[name] for name in FACTS.needed),
        "a remark on the numbers": (row["flags"] or "") not in ("", FACTS.generic_remark),
    }
    reason = next((why for why, holds in rules.items() if holds), "")
    return reason or ("" if _load(row) else "the load is not stated")


def _names_another(row: Mapping[str, Any]) -> bool:
    asked = re.search(PATTERNS["asked_model"], row["bench_command"] or "")
    stated = re.search(PATTERNS["stated_tp"], row["environment_text"] or "")
    if stated and row["tp"] and int(stated[1]) != row["tp"]:
        return True
    if not (asked and is_model(asked[1]) and is_model(row["model"])):
        return False
    return model_name(asked[1]) != model_name(row["model"])


def _has_other_heading(row: Mapping[str, Any]) -> bool:
    """Return whether a heading names another engine or batch than the launch command above it.

    Pages that print one command and change it in words only have such results.
    """
    heading = row["heading"] or ""
    named = [engine for engine, name in FACTS.headed_engines.items() if name in heading]
    sequences = re.search(PATTERNS["headed_sequences"], heading)
    is_of_other = bool(named) and row["framework"] not in named
    return is_of_other or bool(sequences and int(sequences[1]) != row["max_running"])


def _drafts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of speculation; empty without it, or if the drafter is unknown.

    SGLang calls a model's own head EAGLE, as it does separately trained heads: models that have
    their own head name no other.
    """
    stated = re.search(PATTERNS["drafted"], row["spec_config"] or "")
    count = int(stated[1]) if stated else row["spec_steps"]
    is_own = stated or row["spec_algorithm"] == "EAGLE"
    if not (count and is_own and row["spec_topk"] in (None, 1)):
        return {}
    return {"speculation.method": options_of.MTP, "speculation.num_draft_tokens": int(count)}


def _load(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the load; empty if the requests in flight contradict the stated clients."""
    requests = int(row["successful_requests"])
    rate = float(row["request_rate_arg"] or row["request_rate_printed"] or 0.0)
    clients = row["max_concurrency_arg"] or row["max_concurrency_printed"]
    if 0 < rate < FACTS.unlimited_rate and not clients:
        return {"arrivals.process": options_of.POISSON, "qps": rate, "requests": requests}
    spent_s = row["ttft_mean_s"] + row["tpot_mean_s"] * (row["mean_output_tokens"] - 1.0)
    in_flight = spent_s * requests / row["duration_s"]
    if clients and in_flight < FACTS.busy_share * clients:
        return {}
    count = int(clients or requests)
    closed = {"arrivals.process": options_of.CLOSED, "arrivals.clients": count}
    return closed | {"requests": max(requests, count)}


def _block(row: Record) -> ResultBlock:
    model, gpu, framework = model_name(row.model), load_gpu(gpu_name(row.gpu)), row.framework
    engine, is_sglang = load_engine(framework), framework == "sglang"
    layout = _layout(row, model)
    default_batch = engine.running_requests(gpu)
    chunk = int(row.chunk_tokens or engine.defaults.batch_limits(gpu).tokens)
    if is_sglang:  # divided by the data-parallel ranks of attention (`server_args.py`)
        chunk //= layout.get("attention_dp", 1)
    if is_sglang and row.speculative:
        default_batch = FACTS.sequences_with_drafts
    fraction = float(row.mem_fraction or 0.0)  # 0: not stated
    runtime = _runtime(framework, row.framework_version)
    reuses = options_of.RECOMPUTE if row.prefix_cache_off_flag else options_of.CACHED
    options = {
        "model": model,
        "gpu": gpu.name,
        "scheduler": engine.schedulers[0],
        "runtime": runtime,
        "chunk_size": chunk,
        "max_batch": int(row.max_running or default_batch),
        "memory_fraction": fraction or engine.defaults.gpu_memory_fraction,
        "cache.block_size": 16,
        "cache.prefix_caching": False,
        "cache.watermark": 0.0,
        "cache.preemption": reuses,
        "dtype": _dtype(row, model, gpu),
        "kv_dtype": _kv_dtype(row, model, gpu),
        "measurement.window": options_of.WHOLE,
    }
    changes = _drafts(row) | printed_lengths(row) | layout | _load(row)
    point = point_from(ServingPoint, options | changes)
    if is_sglang:
        point = replace(point, memory_fraction=_with_activations(point, gpu, fraction))
    if framework == "vllm":  # the first pass samples for as many sequences as run at a time
        drawn = FACTS.drawn_bytes * point.max_num_seqs * load_model(model).vocab
        left = point.gpu_memory_utilization - float(drawn) / gpu.hbm_bytes
        point = replace(point, memory_fraction=left)
    kinds = {kind: tuple(row[name] for name in names) for kind, names in FACTS.options.items()}
    is_async = bool(re.search(PATTERNS["async_scheduling"], row.launch_command))
    decodes = FACTS.latent_decodes.get(runtime, {}) if load_model(model).is_latent else {}
    return ResultBlock(
        point=point,
        **{ours: row[theirs] for ours, theirs in FACTS.fields.items()},
        options=kinds | {"host": (is_async,)},
        decode=decodes.get(row.attention_backend, ""),
    )


def _with_activations(point: ServingPoint, gpu: Gpu, static: float) -> float:
    """Return SGLang's memory fraction as ours, which includes activations."""
    layout = Parallelism(tp=point.tp, pp=point.pp, ep=point.ep, attention_dp=point.attention_dp)
    tokens, rows = float(point.token_budget), float(point.max_num_seqs)
    working = activation_bytes(load_model(point.model), layout, point.dtype, tokens, rows)
    return (static or _static_fraction(point, gpu)) + float(working) / gpu.hbm_bytes


def _static_fraction(point: ServingPoint, gpu: Gpu) -> float:
    """Return SGLang's default share of a GPU for weights and KV cache.

    SGLang reserves memory for activations of prompts, CUDA graphs, wide groups, padded attention
    ranks and drafts, in MiB (`_handle_gpu_memory_settings` of `server_args.py`, since 0.5.3).
    """
    ranks, width = point.attention_dp, point.attention_dp * point.tp
    graphs = 512.0 if width >= 4 or gpu.hbm_bytes > FACTS.sglang_large_bytes else 256.0
    reserved = 512.0 + 1.5 * max(2048.0, point.token_budget * ranks) + 2.0 * graphs
    reserved += 1024.0 * width * point.pp / 8.0
    if ranks > 1:
        reserved += ranks * graphs * (4.5 if graphs > 300.0 else 3.0)
    reserved = max(reserved, 10_240.0)
    if point.speculation.method != NOTHING:
        reserved += 2048.0
    return 1.0 - reserved * MIB / gpu.hbm_bytes


def _runtime(framework: str, version: str | None) -> str:
    if framework in FACTS.runtimes:
        return str(FACTS.runtimes[framework])
    release = "2025-12-01" if (version or "").startswith(FACTS.before_releases) else version
    return load_engine(framework).runtime_of_release(release or "")


def _dtype(row: Mapping[str, Any], model: str, gpu: Gpu) -> str:
    """Return the precision of a checkpoint; GPUs without fp8 convert weights when reading them."""
    if load_model(model).published_experts == MXFP4:
        return dtype_of(model, gpu.name, "fp4")
    if row["model"] in FACTS.four_bit_repositories:
        return "bf16+w4a16"
    if row["model_name_precision_hint"] != "fp8" and model not in FACTS.fp8_models:
        return "bf16"
    return dtype_of(model, gpu.name, "fp8") if "fp8" in gpu.peak_flops else "w8a16"


def _kv_dtype(row: Mapping[str, Any], model: str, gpu: Gpu) -> str:
    narrows = row["framework"] in FACTS.fp8_index_keys.get(gpu.architecture, ())
    default = "fp8" if narrows and load_model(model).index_top_k > 0 else ""
    return "fp8" if (row["kv_dtype"] or default).startswith("fp8") else "bf16"


def _layout(row: Mapping[str, Any], model: str) -> dict[str, Any]:
    tp, dp, pp, ep = (_degree(row, name) for name in ("tp", "dp", "pp", "ep"))
    if row["dp_attention_flag"]:  # attention is data-parallel over groups of the tp GPUs
        tp = max(1, tp // dp)
    elif not load_model(model).experts:
        return {"tp": tp, "pp": pp, "replicas": dp}
    if row["expert_parallel_flag"] and ep == 1:  # vLLM's flag: over all
        ep = tp * dp
    skew = FACTS.routing_skew if ep > 1 else 0.0
    return {"tp": tp, "pp": pp, "attention_dp": dp, "ep": ep, "moe.routing_skew": skew}


def _degree(row: Mapping[str, Any], name: str) -> int:
    written = re.search(PATTERNS["degree"].format(name), row["launch_command"])
    return int(row[name] or (written[1] if written else 1))


def printed_lengths(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a point for lengths of prompts and answers, whose means are printed."""
    prompt, output = row["mean_input_tokens"], row["mean_output_tokens"]
    is_sglang = LENGTHS.sglang_client in (row["bench_command"] or "")
    is_random = row["dataset"] == "random" or _is_round(prompt)
    evenly = is_random and is_sglang
    longest = 2.0 if evenly else 1.0
    found: dict[str, Any] = {
        "prompt_tokens": max(1, round(longest * prompt)),
        "output_tokens": max(1, round(longest * output)),
    }
    if evenly and (asked := _drawn_for(row)):
        return asked
    if is_random:
        return found | {"lengths.spread": EVENLY if evenly else 0.0}
    found |= {"workload": LENGTHS.workload, "lengths.shape": options_of.AS_WORKLOAD}
    if is_sglang:  # asks to ignore the end of an answer
        return found
    return found | _ended_early(prompt, output, int(row["successful_requests"]))


def _drawn_for(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lengths that SGLang's client drew, by its arguments; empty if the means disagree.

    Some of its releases print a token less of every answer.
    """
    most = int(row["isl_arg"] or 0), int(row["osl_arg"] or 0)
    requests = int(row["successful_requests"])
    if not all(most) or row["random_range_ratio"]:
        return {}
    drawn = bench_serving_lengths(LENGTHS.seed, requests, most, LENGTHS.from_one)
    prompt, output = (float(lengths.mean()) for lengths in drawn)
    unprinted = output - row["mean_output_tokens"]
    if abs(prompt - row["mean_input_tokens"]) * requests > 0.5 or not -0.01 < unprinted < 1.01:
        return {}
    return {
        "prompt_tokens": most[0],
        "output_tokens": most[1],
        "seed": LENGTHS.seed,
        "lengths.shape": options_of.BENCH_SERVING,
        "lengths.spread": LENGTHS.from_one,
    }


def _ended_early(prompt: float, output: float, requests: int) -> dict[str, Any]:
    """Return the requested mean of conversations, and the length at which longer answers ended.

    vLLM's client lets a model end its answer early, which shortens the longest answers most. The
    cut-off gives the printed mean. Empty if the mean is as requested.
    """
    asked = LENGTHS.answered * prompt
    if output > asked * (1.0 - LENGTHS.tolerance):
        return {}
    lengths = scaled_to_mean(token_counts(LENGTHS.workload, 0, requests)[1], asked)
    ends = np.arange(lengths.max() + 1)
    means = np.minimum(lengths, ends[:, None]).mean(axis=1)
    cut_off = int(np.searchsorted(means, output))
    return {"output_tokens": round(asked), "lengths.max_output_tokens": cut_off}


def _is_round(tokens: float) -> bool:
    """Return whether a mean length is a multiple of a usual step, except for a few tokens."""
    near = LENGTHS.tolerance
    return any(
        tokens >= step * (1.0 - near)
        and abs(tokens / step - round(tokens / step)) * step <= near * tokens
        for step in LENGTHS.steps
    )
