"""Measured training steps, as a job and a plan each: papers, frameworks' tables, recipes.

What a row does not state is taken as its framework did it: Megatron's tables hold distributed
optimisers and sequence parallelism, llm-foundry's full sharding. Micro-batches and chunks that a
paper leaves out are the fastest by the model among those that fit, as nobody runs others, except
where the peer that validates against a row states them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.tables.rows import read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import UnknownNameError
from simulators.training.job import EAGER, FLASH, FLASH2, FUSED, UNFUSED, Job
from simulators.training.plan import FULL, NONE, SELECTIVE, Plans
from simulators.training.schedule.orders import INTERLEAVED, ONE_F_ONE_B
from simulators.workload.precision import BYTES

MEASURED = "training/measured_training.parquet"
FLAGGED = "training/flagged_rows.csv"
PEER = "training/calculon_predictions.parquet"
TABLES = (MEASURED, FLAGGED)

GPUS = {
    "A100-80GB": "a100_sxm",
    "A100 (Ampere)": "a100_sxm",
    "A100-40GB": "a100_sxm_40gb",
    "H100": "h100_sxm",
    "H100-80GB": "h100_sxm",
    "H100-96GB-500W": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
}
MODELS = {
    "DeepSeekV3": "deepseek_v3",
    "Deepseek V3": "deepseek_v3",
    "DeepSeek V3 671B": "deepseek_v3",
    "GPT OSS 120B": "gpt_oss_120b",
    "GPT-OSS 20B": "gpt_oss_20b",
    "Kimi_K2": "kimi_k2_5",
    "Kimi K2": "kimi_k2_5",
    "LLAMA3.1_405B": "llama3_1_405b",
    "Llama3.1 405b": "llama3_1_405b",
    "Llama3.1 405B": "llama3_1_405b",
    "LLAMA3_70B": "llama3_1_70b",
    "Llama3 70B": "llama3_1_70b",
    "Llama3.1 70B": "llama3_1_70b",
    "LLAMA3_8B": "llama3_1_8b",
    "Llama3.1 8B": "llama3_1_8b",
    "Qwen3_30B_a3B": "qwen3_30b",
    "Qwen3 MoE 30B": "qwen3_30b",
    "LLAMA4 maverick 400b": "llama4_maverick",
    "LLAMA4 Maverick 400b": "llama4_maverick",
    "Grok1 314b": "grok_1",
    "Nemotron4 15b": "nemotron4_15b",
    "Nemotron 340b": "nemotron4_340b",
    "Deepseek Coder": "",
}
MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
"""Layers, width and heads of MPT models (mosaicml/llm-foundry, train/yamls/pretrain)."""

DTYPES = {
    "FP16": "bf16",
    "BF16": "bf16",
    "bf16": "bf16",
    "amp_bf16": "bf16",
    "amp_fp8": "fp8",
    "FP8": "fp8",
    "MXFP8": "fp8",
    "NVFP4": "fp4",
    "FP8 rowwise": "fp8",
    "FP8 tensorwise": "fp8",
}

PAPERS, MEGASCALE, FOUNDRY = "A100 papers", "MegaScale", "llm-foundry"
BRIDGE, DGXC, TITAN, AUTOMODEL = "Megatron-Bridge", "DGX Cloud", "torchtitan", "Automodel"
SOURCES = {
    "Korthikanti": PAPERS,
    "Narayanan": PAPERS,
    "Megatron-LM": PAPERS,
    "Smith": PAPERS,
    "MegaScale": MEGASCALE,
    "foundry": FOUNDRY,
    "Bridge": BRIDGE,
    "dgxc": DGXC,
    "torchtitan": TITAN,
    "Automodel": AUTOMODEL,
}

ATTENTION = {PAPERS: UNFUSED, MEGASCALE: FLASH2, FOUNDRY: FLASH2, TITAN: FLASH2}
"""Kernels of attention that are not the newest, by source."""

FIRST_GRAPHS = 26.06
"""Of the containers whose recipes of mixtures on Blackwell replay whole iterations (release notes
of Megatron Bridge 0.5.1, 2026)."""

WIDE_GRADIENTS = (PAPERS, MEGASCALE)
"""Megatron-LM sums gradients in fp32 by default where it trains in bf16, and can in fp16."""

USELESS = (
    "outlier",
    "regression",
    "same measurement",
    "early recipe",
    "gbs / N",
    "impossible",
    "inconsistent",
    "different settings",
    "local batch",
)
"""Words of reasons that set a row aside."""

UNSTATED_PLANS = tuple((mbs, chunks) for mbs in (1, 2, 4, 8) for chunks in (1, 2, 3, 4, 5, 6))


@dataclass(frozen=True)
class MeasuredStep:
    """One measured step: what was run, in as many ways as its source leaves open."""

    row: str
    source: str  # one of the names above
    group: tuple[str, str, str]  # source, model and GPU: what is left out together
    job: Job
    plans: Plans  # one entry for each way that the source leaves open
    seconds: float
    is_mixture: bool
    is_flagged: bool  # for a reason that makes it useless
    peer_s: float  # what the peer predicts; not a number where it does not
    useful_flops: float  # of a step, for a constant share of the peak


def measured_steps(reference: Path) -> Iterator[MeasuredStep]:
    """Yield the steps of pre-training whose model and GPU the catalog has.

    Flags that concern only a missing name or micro-batch do not set a row aside; those that say
    that it contradicts itself, repeats another or ran on immature software do.
    """
    reasons = flagged(reference)
    peers = {row["row_id"]: row for row in read_records(reference / PEER)}
    for row in read_records(reference / MEASURED):
        peer: Mapping[str, Any] = peers.get(row["row_id"], {})
        if row["step_time_s"] and row["gbs"] and row["seq_len"] and "LoRA" not in row["task"]:
            step = _step(row, reasons.get(row["row_id"], ""), peer)
            if step is not None:
                yield step


def flagged(reference: Path) -> dict[str, str]:
    """Return the reasons of flagged rows, joined."""
    found: dict[str, str] = {}
    with (reference / FLAGGED).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["row_id"]] = "; ".join(
                filter(None, (found.get(row["row_id"]), row["reason"]))
            )
    return found


def contradicts(reason: str) -> bool:
    """Say whether a reason makes a row useless: it contradicts itself, repeats another or is early.

    >>> contradicts("model is Llama3 8B (join)"), contradicts("outlier")
    (False, True)
    """
    return any(word in reason for word in USELESS)


def _step(row: Mapping[str, Any], reason: str, peer: Mapping[str, Any]) -> MeasuredStep | None:
    source = next(name for word, name in SOURCES.items() if word in row["source"])
    named = re.search(r"model is (.+?) \(join", reason)
    name = named[1] if named else row["model"]
    model = _model(row, name, source)
    gpu_name = GPUS.get(row["gpu"], "")
    if model is None or not gpu_name or row["precision"] not in DTYPES:
        return None
    try:
        gpu = load_gpu(gpu_name)
    except UnknownNameError:
        return None
    tp, pp, cp, ep = (int(row[n] or 1) for n in ("tp", "pp", "cp", "ep"))
    old = source == PAPERS
    job = Job(
        model=model,
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        dtype=DTYPES[row["precision"]],
        sequence=int(row["seq_len"]),
        tp=tp,
        cp=cp,
        ep=ep,
        sequence_parallel="sequence" in (row["recompute"] or "") if old else tp > 1,
        attention=ATTENTION.get(source, FLASH),
        fusion=EAGER if source == FOUNDRY or _is_of_2021(row) else FUSED,
        cuda_graphs=_has_graphs(row, model, gpu.architecture),
    )
    dp = int(row["gpus"]) // (tp * pp * cp)
    plans = _plans(row, source, peer, pp, dp, cp)
    if plans is None:
        return None
    return MeasuredStep(
        row=row["row_id"],
        source=source,
        group=(row["source"], name, row["gpu"]),
        job=job,
        plans=plans,
        seconds=float(row["step_time_s"]),
        is_mixture=model.experts > 0,
        is_flagged=contradicts(reason),
        peer_s=float(peer.get("calculon_s") or np.nan),
        useful_flops=6.0 * model.active_parameters * row["gbs"] * row["seq_len"] / row["gpus"],
    )


def _plans(
    row: Mapping[str, Any], source: str, peer: Mapping[str, Any], pp: int, dp: int, cp: int
) -> Plans | None:
    """Return the ways in which a row may have been run; none if no micro-batch divides it."""
    stated = int(row["mbs"] or 0)
    chunks = int(row["vp"] or 0)
    if "Korthikanti" in row["source"]:
        stated = int(re.findall(r"mbs(\d+)", peer["note"])[0])
    if (
        "DeepSpeed" in row["software"]
        or pp == 1
        or ("Interleaved" not in row["software"] and (source == TITAN))
    ):
        chunks = 1
    ways = [
        (mbs, v)
        for mbs, v in UNSTATED_PLANS
        if (not stated or mbs == 1) and (not chunks or v == 1)
        for mbs, v in [(stated or mbs, chunks or v)]
        if row["gbs"] % (dp * mbs) == 0 and _fits(row, pp, v, row["gbs"] // (dp * mbs))
    ]
    if not ways or dp < 1:
        return None
    count = len(ways)
    micro, number = np.array([w[0] for w in ways]), np.array([w[1] for w in ways])
    full = {"full": FULL, "none": NONE, None: NONE}.get(row["recompute"], SELECTIVE)
    is_sharded = source in (FOUNDRY, TITAN, AUTOMODEL) or (row["fsdp"] or "0") not in ("0", "1")
    whole_states = source in WIDE_GRADIENTS

    def same(value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.full(count, value, np.int64)

    shards = dp * cp
    if source in (TITAN, AUTOMODEL) and str(row["fsdp"] or "").isdigit():
        shards = max(1, min(shards, int(row["fsdp"]) * cp))
        shards = shards if (dp * cp) % shards == 0 else dp * cp
    return Plans(
        pp=same(pp),
        dp=same(dp),
        chunks=number.astype(np.int64),
        micro_batch=micro.astype(np.float64),
        micro_batches=(row["gbs"] // (dp * micro)).astype(np.int64),
        schedule=np.where(number > 1, INTERLEAVED, ONE_F_ONE_B).astype(np.int64),
        recompute=same(full),
        zero=same(3 if is_sharded else 0 if whole_states else 1),
        shards=same(shards),
        gradient_bytes=np.full(count, BYTES["fp32" if source in WIDE_GRADIENTS else "bf16"]),
        overlaps=same(0 if source in WIDE_GRADIENTS else 1),
        again=same(full == FULL).astype(np.float64),
        offloads=same(0),
        host_adam_per_s=np.ones(count),
    )


def _has_graphs(row: Mapping[str, Any], model: LanguageModel, architecture: str) -> bool:
    """Say whether whole steps of a row are CUDA graphs: of mixtures on Blackwell the newest are."""
    release = re.match(r"(\d\d\.\d\d)\S* NeMo Container", row["software"])
    is_late = release is not None and float(release[1]) >= FIRST_GRAPHS
    return is_late and model.experts > 0 and architecture == "blackwell"


def _is_of_2021(row: Mapping[str, Any]) -> bool:
    """Say whether a row is of Megatron-LM before its kernels between products were fused."""
    return any(word in row["software"] for word in ("2021", "v2.5", "DeepSpeed"))


def _fits(row: Mapping[str, Any], pp: int, chunks: int, micro_batches: int) -> bool:
    """Say whether layers can be cut into chunks that Megatron interleaves."""
    if chunks == 1:
        return True
    even = not row["layers"] or row["layers"] % (pp * chunks) == 0
    return bool(pp > 1 and micro_batches % pp == 0 and even)


def _model(row: Mapping[str, Any], name: str, source: str) -> LanguageModel | None:
    if row["layers"] and source in (PAPERS, MEGASCALE):
        return gpt(row["layers"], row["hidden"], row["heads"])
    if name.startswith("MPT-"):
        return mpt(name.removeprefix("MPT-"), int(row["seq_len"]))
    base = name.split(" (")[0]
    try:
        return load_model(MODELS[base]) if MODELS.get(base) else None
    except UnknownNameError:
        return None


@cache
def gpt(layers: int, hidden: int, heads: int) -> LanguageModel:
    """Return a model of GPT-3's kind, as in Megatron-LM's papers."""
    return LanguageModel(
        name=f"gpt_{layers}_{hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=51_200,
        max_context=2048,
        gated_ffn=False,
        tied_embeddings=True,
        norm="layer_norm",
        biases=True,
        learned_positions=2048,
        source="",
    )


def mpt(size: str, sequence: int) -> LanguageModel:
    """Return a model of the MPT family."""
    return replace(
        gpt(*MPT[size]),
        name=f"mpt_{size}",
        vocab=50_368,
        max_context=sequence,
        biases=False,
        learned_positions=sequence,
    )
