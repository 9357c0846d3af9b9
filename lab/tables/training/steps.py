"""Measured training steps from papers, recipes and tables of frameworks, as jobs and plans.

What a row does not state is taken as its framework did it: Megatron's tables use distributed
optimizers and sequence parallelism, llm-foundry's full sharding. Micro-batches and chunks that a
paper omits are the fastest by the model among those that fit, except where Calculon, which
validates against a row, states them.
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

from lab.tables.catalog_names import is_gpu, is_model
from lab.tables.rows import Record, read_records
from lab.tables.training.plans import plans_of
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.folder import read_toml
from simulators.training.job import EAGER, FLASH, FULL, FUSED, NONE, SELECTIVE, Job, Plans
from simulators.training.schedule import INTERLEAVED, ONE_F_ONE_B
from simulators.workload.precision import BYTES

MEASURED = "training/measured_training.parquet"
FLAGGED = "training/flagged_rows.csv"
PEER = "training/calculon_predictions.parquet"
TABLES = (MEASURED, FLAGGED)

NAMES = read_toml(Path(__file__).with_suffix(".toml"))
SOURCES: Mapping[str, str] = NAMES["sources"]
PAPERS, MEGASCALE, FOUNDRY = "A100 papers", "MegaScale", "llm-foundry"
BRIDGE, DGXC, TITAN, AUTOMODEL = "Megatron-Bridge", "DGX Cloud", "torchtitan", "Automodel"

FIRST_GRAPHS = 26.06
"""First containers whose recipes of mixtures on Blackwell replay whole iterations as CUDA graphs
(release notes of Megatron Bridge 0.5.1, 2026)."""

WIDE_GRADIENTS = (PAPERS, MEGASCALE)
"""Megatron-LM sums gradients in fp32 by default where it trains in bf16, and can in fp16."""

UNSTATED_PLANS = tuple((mbs, chunks) for mbs in (1, 2, 4, 8) for chunks in (1, 2, 3, 4, 5, 6))


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step, with a plan for every option that the source leaves open."""

    row: str
    source: str  # a value of `SOURCES`
    group: tuple[str, str, str]  # source, model and GPU: held out together
    job: Job
    plans: Plans
    seconds: float
    is_mixture: bool
    is_flagged: bool  # for a reason that makes it useless
    peer_s: float  # Calculon's prediction; NaN where it has none
    useful_flops: float  # of a step on one GPU


def measured_steps(reference: Path) -> Iterator[MeasuredStep]:
    """Yield the pre-training steps whose model and GPU are in the catalog."""
    reasons = flagged(reference)
    peers = {row.row_id: row for row in read_records(reference / PEER)}
    for row in read_records(reference / MEASURED):
        if row.step_time_s and row.gbs and row.seq_len and "LoRA" not in row.task:
            step = _step(row, reasons.get(row.row_id, ""), peers.get(row.row_id, Record()))
            if step is not None:
                yield step


def flagged(reference: Path) -> dict[str, str]:
    """Return the reasons of flagged rows, joined."""
    found: dict[str, list[str]] = {}
    with (reference / FLAGGED).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["row_id"], []).append(row["reason"])
    return {row_id: "; ".join(filter(None, reasons)) for row_id, reasons in found.items()}


def contradicts(reason: str) -> bool:
    """Return whether a reason makes a row useless; a missing name or micro-batch does not.

    >>> contradicts("model is Llama3 8B (join)"), contradicts("outlier")
    (False, True)
    """
    return any(word in reason for word in NAMES["useless"])


def _step(row: Record, reason: str, peer: Mapping[str, Any]) -> MeasuredStep | None:
    source = next(name for word, name in SOURCES.items() if word in row.source)
    named = re.search(r"model is (.+?) \(join", reason)
    name = named[1] if named else row.model
    model = _model(row, name, source)
    gpu_name = NAMES["gpus"].get(row.gpu, "")
    if model is None or not is_gpu(gpu_name) or row.precision not in NAMES["dtypes"]:
        return None
    gpu = load_gpu(gpu_name)
    tp, pp, cp, ep = (int(row[n] or 1) for n in ("tp", "pp", "cp", "ep"))
    is_paper = source == PAPERS
    is_of_2021 = any(word in row.software for word in ("2021", "v2.5", "DeepSpeed"))
    job = Job(
        model=model,
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        dtype=NAMES["dtypes"][row.precision],
        sequence=int(row.seq_len),
        tp=tp,
        cp=cp,
        ep=ep,
        sequence_parallel="sequence" in (row.recompute or "") if is_paper else tp > 1,
        attention=NAMES["attention"].get(source, FLASH),
        fusion=EAGER if source == FOUNDRY or is_of_2021 else FUSED,
        cuda_graphs=_has_graphs(row, model, gpu.architecture),
    )
    plans = _plans(row, source, peer, pp, int(row.gpus) // (tp * pp * cp), cp)
    if plans is None:
        return None
    return MeasuredStep(
        row=row.row_id,
        source=source,
        group=(row.source, name, row.gpu),
        job=job,
        plans=plans,
        seconds=float(row.step_time_s),
        is_mixture=model.experts > 0,
        is_flagged=contradicts(reason),
        peer_s=float(peer.get("calculon_s") or np.nan),
        useful_flops=6.0 * model.active_parameters * row.gbs * row.seq_len / row.gpus,
    )


def _plans(
    row: Record, source: str, peer: Mapping[str, Any], pp: int, dp: int, cp: int
) -> Plans | None:
    """Return the plans that a row leaves open; None if no micro-batch divides its batch."""
    stated, chunks = int(row.mbs or 0), int(row.vp or 0)
    if "Korthikanti" in row.source:
        stated = int(re.findall(r"mbs(\d+)", peer["note"])[0])
    is_plain = source == TITAN and "Interleaved" not in row.software
    if "DeepSpeed" in row.software or pp == 1 or is_plain:
        chunks = 1
    possible = dict.fromkeys((stated or mbs, chunks or count) for mbs, count in UNSTATED_PLANS)
    ways = [
        (mbs, count)
        for mbs, count in possible
        if row.gbs % (dp * mbs) == 0 and _fits(row, pp, count, row.gbs // (dp * mbs))
    ]
    if not ways or dp < 1:
        return None
    micro, number = (np.array(column) for column in zip(*ways, strict=True))
    is_full = row.recompute == "full"
    recompute = FULL if is_full else NONE if row.recompute in ("none", None) else SELECTIVE
    is_sharded = source in (FOUNDRY, TITAN, AUTOMODEL) or (row.fsdp or "0") not in ("0", "1")
    sums_late = source in WIDE_GRADIENTS
    shards = dp * cp
    if source in (TITAN, AUTOMODEL) and str(row.fsdp or "").isdigit():
        stated_shards = max(1, min(shards, int(row.fsdp) * cp))
        shards = stated_shards if shards % stated_shards == 0 else shards
    return plans_of(
        pp=pp,
        dp=dp,
        chunks=number,
        micro_batch=micro,
        micro_batches=row.gbs // (dp * micro),
        schedule=np.where(number > 1, INTERLEAVED, ONE_F_ONE_B),
        recompute=recompute,
        zero=3 if is_sharded else 0 if sums_late else 1,
        shards=shards,
        gradient_bytes=BYTES["fp32" if sums_late else "bf16"],
        overlaps=not sums_late,
        again=is_full,
    )


def _has_graphs(row: Record, model: LanguageModel, architecture: str) -> bool:
    """Return whether whole steps are CUDA graphs, as of mixtures on Blackwell since a release."""
    release = re.match(r"(\d\d\.\d\d)\S* NeMo Container", row.software)
    is_late = release is not None and float(release[1]) >= FIRST_GRAPHS
    return is_late and model.experts > 0 and architecture == "blackwell"


def _fits(row: Record, pp: int, chunks: int, micro_batches: int) -> bool:
    """Return whether Megatron can interleave chunks of layers."""
    is_even = not row.layers or row.layers % (pp * chunks) == 0
    return chunks == 1 or bool(pp > 1 and micro_batches % pp == 0 and is_even)


def _model(row: Record, name: str, source: str) -> LanguageModel | None:
    if row.layers and source in (PAPERS, MEGASCALE):
        return gpt(row.layers, row.hidden, row.heads)
    if name.startswith("MPT-"):
        return mpt(name.removeprefix("MPT-"), int(row.seq_len))
    known = NAMES["models"].get(name.split(" (")[0], "")
    return load_model(known) if known and is_model(known) else None


@cache
def gpt(layers: int, hidden: int, heads: int) -> LanguageModel:
    """Return a model with GPT-3's kind of layers, as in Megatron-LM's papers."""
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
        gpt(*NAMES["mpt"][size]),
        name=f"mpt_{size}",
        vocab=50_368,
        max_context=sequence,
        biases=False,
        learned_positions=sequence,
    )
