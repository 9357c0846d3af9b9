"""Plans of training steps from scalars and columns."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab.stages.profiled import TimedStage
from lab.tables.records import GPUS, extra_model, file_of, is_gpu, is_model, records
from lab.tables.rows import Record, read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.folder import read_toml
from simulators.training.job import (
    EAGER,
    FLASH,
    FLASH_FP8,
    FULL,
    FUSED,
    NONE,
    SELECTIVE,
    ULYSSES,
    ZIGZAG,
    Job,
    Plans,
)
from simulators.training.schedule import INTERLEAVED, ONE_F_ONE_B
from simulators.workload.precision import BYTES

FLOATS = ("micro_batch", "gradient_bytes", "again", "host_adam_per_s")
USUAL = {"again": 0.0, "offloads": 0, "host_adam_per_s": 1.0}


def plans_of(**fields: Any) -> Plans:
    """Return plans; a scalar holds for all of them."""
    count = max(np.size(value) for value in fields.values())
    columns: dict[str, Any] = {
        name: np.full(count, value, np.float64 if name in FLOATS else np.int64)
        for name, value in (USUAL | fields).items()
    }
    return Plans(**columns)


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


SUMMARY = file_of("mlperf_training")

LORA, BERT, GPT3 = "llama2_70b_lora", "bert", "gpt3"
BENCHMARKS: Mapping[str, tuple[str, int]] = {
    GPT3: ("gpt3_175b", 2048),
    "llama31_405b": ("llama3_1_405b", 8192),
    LORA: ("llama2_70b", 8192),
    BERT: ("", 512),
}
"""Model of the catalog, if it has one, and tokens of a sequence, by benchmark."""

MASKED = 0.15
"""Share of BERT's tokens that are predicted (Devlin et al., 2019)."""

BEFORE_GRAPHS, SWAPPING = "v4.0", "v5.0"
"""Round in which adapters are trained without CUDA graphs; first round whose context ranks on
Blackwell exchange heads for tokens (`cp_comm_type: a2a` of its configurations)."""

WHOLE_GRAPHS, IN_BLOCKS = "_cg", "_clipafter"
"""Endings of configurations that replay whole pre-training steps as CUDA graphs, and of BERT's one
that sums gradients in blocks behind the backward pass (`--dwu-overlap-reductions`)."""


@dataclass(frozen=True)
class TrainingSubmission:
    """The step of one system."""

    name: str
    benchmark: str
    submitter: str
    gpus: int
    job: Job
    plans: Plans
    seconds: float
    rounds: tuple[str, ...]  # in which it was submitted: software changes between them


def submissions(reference: Path) -> Iterator[TrainingSubmission]:
    """Yield systems with stated parallelism and a step time, or a rate that gives one."""
    found: dict[tuple[Any, ...], tuple[Record, list[str]]] = {}
    for row in records(reference, "mlperf_training", benchmark=list(BENCHMARKS)):
        if _is_consistent(row) and step_seconds(row):
            key = (row.submitter, row.benchmark, row.time_to_train_min_min)
            found.setdefault(key, (row, []))[1].append(row.round)
    for first, rounds in found.values():
        yield _submission(first, tuple(rounds))


def _is_consistent(row: Record) -> bool:
    """Return whether the configuration gives the logged batch and number of micro-batches.

    BERT's batch counts pairs or sequences. Where a configuration states the parallelism and the
    micro-batch but no share of the batch, these must divide the batch.
    """
    stated = (row.minibs or 0) * row.n_accelerators
    if row.benchmark == BERT:
        return bool(row.global_batch_size in (stated, 2 * stated))
    if row.minibs and row.grad_accum not in (None, row.minibs // (row.mbs or 1)):
        return False
    if stated or not (row.config_unique and row.tp and row.pp and row.mbs):
        return bool(row.config_gbs_consistent)
    return bool(row.global_batch_size % (data_ranks(row) * row.mbs) == 0)


def data_ranks(row: Record) -> int:
    """Return the data-parallel replicas of a system."""
    ranks = (row.tp or 1) * (row.cp or 1) * (row.pp or 1)
    return int(row.dp or row.n_accelerators // ranks)


def step_seconds(row: Record) -> float:
    """Return the median step time, or the batch over the rate; 0 where neither is known.

    Rates count an evaluation of 10,000 sequences every 20 to 200 steps; GPT-3's is in tokens.
    """
    if row.train_step_time_median_s:
        return float(row.train_step_time_median_s)
    tokens = BENCHMARKS[row.benchmark][1] if row.benchmark == GPT3 else 1
    rate = row.throughput_median
    return float(row.global_batch_size * tokens / rate) if rate else 0.0


def _adapter_options(row: Record, architecture: str, cp: int, micro_batches: int) -> dict[str, Any]:
    """Return further options of published configurations of systems that train adapters.

    Those of one sequence a step over context ranks replay layers as CUDA graphs from the second
    round on (`LAYER_CUDA_GRAPH`, `MCORE_CUDA_GRAPH`); on Hopper whole sequences are attended to in
    FP8 (`FP8_DPA`), shared ones are not.
    """
    if row.benchmark != LORA:
        return {}
    swaps = row.round >= SWAPPING and architecture == "blackwell"
    return {
        "layer_graphs": cp > 1 and micro_batches == 1 and row.round != BEFORE_GRAPHS,
        "attention": FLASH_FP8 if cp == 1 and architecture == "hopper" else FLASH,
        "context_exchange": ULYSSES if swaps else ZIGZAG,
    }


def _submission(row: Record, rounds: tuple[str, ...]) -> TrainingSubmission:
    model, sequence = BENCHMARKS[row.benchmark]
    gpu = load_gpu(GPUS[row.accelerator])
    gpus, tp, cp = int(row.n_accelerators), int(row.tp or 1), int(row.cp or 1)
    is_bert = row.benchmark == BERT
    dp = gpus if is_bert else data_ranks(row)
    pp = int(row.pp or gpus // (tp * cp * dp))
    chunks = int(row.vpp or 1) if pp > 1 else 1
    batch = row.global_batch_size / (2 if is_bert else 1)
    configuration = row.config_candidates or ""
    micro_batches = int(row.grad_accum or 1) if is_bert else int(batch // (dp * int(row.mbs or 1)))
    job = Job(
        model=extra_model("bert_large.toml") if is_bert else load_model(model),
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        dtype="fp8",
        sequence=sequence,
        tp=tp,
        cp=cp,
        sequence_parallel=tp > 1,
        lora_rank=16 if row.benchmark == LORA else 0,
        predicted_share=MASKED if is_bert else 1.0,
        cuda_graphs=is_bert or WHOLE_GRAPHS in configuration,
        **_adapter_options(row, gpu.architecture, cp, micro_batches),
    )
    plans = plans_of(
        pp=pp,
        dp=dp,
        chunks=chunks,
        micro_batch=batch / (dp * micro_batches),
        micro_batches=micro_batches,
        schedule=INTERLEAVED if chunks > 1 else ONE_F_ONE_B,
        recompute=NONE,
        zero=1,
        shards=min(dp, int(row.accelerators_per_node)) if is_bert else dp * cp,
        gradient_bytes=2.0,
        overlaps=not is_bert or IN_BLOCKS in configuration,
    )
    name, seconds = f"{row.submitter} {row.system}", step_seconds(row)
    return TrainingSubmission(name, row.benchmark, row.submitter, gpus, job, plans, seconds, rounds)


ITERATIONS = "training_modern/sailor_iteration_time.parquet"
PROFILES = "training_modern/sailor_layer_profile.parquet"
LAYERS = "training_modern/sailor_layer_info.parquet"

BROKEN = ("GPT-Neo-2.7", 1024)
"""Iterations of this model and batch are three times the sum of the published profile."""

COPIES = ("clariden/OPT-350/N4/plan_config_N4_D4.json", "mit/N6/plan_config_N6_D2.json")
"""Rows whose numbers are copies of another's (the table's README)."""


@dataclass(frozen=True)
class ProfiledPlan:
    """One measured plan, with its stages from the profile, without the sum of gradients."""

    name: str
    cluster: str
    model: str
    stages: tuple[TimedStage, ...]
    micro_batch: int
    micro_batches: int
    pp: int
    dp: int
    send_bytes: float  # of a micro-batch, to the next stage
    gradient_bytes: float  # of the stage with most weights, on one rank
    seconds: float
    sync_s: float
    peak_bytes: float
    held_bytes: float  # weights and activations as the profile counts them

    def with_sync(self, sync_s: float) -> tuple[TimedStage, ...]:
        """Return the stages with the time of summing their gradients."""
        return tuple(replace(stage, sync_s=sync_s) for stage in self.stages)


def iterations(reference: Path) -> Iterator[ProfiledPlan]:
    """Yield plans whose layers were all profiled; copies and broken rows are left out."""
    times = {
        (row.model, row.gpu, row.mbs, row.tp, int(row.layer)): (row.fwd_s, row.bwd_s, row.update_s)
        for row in read_records(reference / PROFILES)
    }
    sizes = {
        (row.model, int(row.mbs), int(row.layer)): row for row in read_records(reference / LAYERS)
    }
    for row in read_records(reference / ITERATIONS):
        if (row.model, row.gbs) != BROKEN and row.file not in COPIES:
            found = _iteration(row, times, sizes)
            if found is not None:
                yield found


def _iteration(
    row: Record,
    times: Mapping[tuple[Any, ...], tuple[float, float, float]],
    sizes: Mapping[tuple[str, int, int], Record],
) -> ProfiledPlan | None:
    """Return one plan; None where a layer was not timed."""
    [plan] = json.loads(row.pipeline_list)
    layers, placed = plan["layers_per_stage"], plan["tmp_per_stage"]
    mbs, model = row.mbs, row.model
    micro_batches = row.gbs // (row.dp * mbs)
    stages, most, held = [], 0.0, 0.0
    for stage, replicas in zip(layers, placed, strict=True):
        kinds = {(replica[0][0][0], replica[1]) for replica in replicas}
        sums = []
        for gpu, tp in kinds:
            keys = [(model, gpu, mbs, tp, layer) for layer in stage]
            if any(key not in times for key in keys):
                return None
            sums.append([sum(times[key][i] for key in keys) for i in range(3)])
        stages.append(TimedStage(*max(sums, key=lambda one: one[0] + one[1])))
        tp = max(tp for _, tp in kinds)
        known = [sizes[model, tp, layer] for layer in stage if (model, tp, layer) in sizes]
        weights = float(sum(one.params_bytes for one in known))
        most = max(most, weights)
        in_flight = min(len(layers) - len(stages) + 1, micro_batches)
        # fp32 weights, gradients and Adam's two moments; logits in four copies where there are any
        logits = 4 * mbs * known[-1].act_output_bytes if stage is layers[-1] and known else 0.0
        activations = in_flight * mbs * sum(one.act_mem_bytes for one in known)
        held = max(held, 4 * weights + activations + logits)
    boundary = sizes.get((model, placed[0][0][1], layers[0][-1]))
    return ProfiledPlan(
        name=row.file,
        cluster=row.cluster,
        model=model,
        stages=tuple(stages),
        micro_batch=mbs,
        micro_batches=micro_batches,
        pp=row.pp,
        dp=row.dp,
        send_bytes=float(mbs * boundary.act_output_bytes) if boundary else 0.0,
        gradient_bytes=most,
        seconds=row.iter_time_s,
        sync_s=row.grad_sync_s,
        peak_bytes=row.peak_mem_bytes,
        held_bytes=held,
    )
