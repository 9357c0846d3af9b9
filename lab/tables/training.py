"""Measured training: steps of papers and frameworks, MLPerf submissions, Sailor's profiles.

`training.toml` holds names, and what is assumed where a source is silent.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.records import GPUS, extra_model, file_of, is_gpu, is_model, records
from lab.tables.rows import Record, read_frame, read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.folder import read_toml
from simulators.training import job as jobs
from simulators.training.job import Job, Plans
from simulators.training.schedule import INTERLEAVED, ONE_F_ONE_B
from simulators.workload.precision import BYTES

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))
SOURCES: Mapping[str, str] = FACTS.sources
MEASURED, FLAGGED = FACTS.tables["measured"], FACTS.tables["flagged"]
PAPERS, MEGASCALE, FOUNDRY = "A100 papers", "MegaScale", "llm-foundry"
BRIDGE, DGXC, TITAN, AUTOMODEL = "Megatron-Bridge", "DGX Cloud", "torchtitan", "Automodel"
WIDE_GRADIENTS = (PAPERS, MEGASCALE)  # Megatron-LM sums gradients in fp32 by default
UNSTATED_PLANS = tuple((mbs, chunks) for mbs in (1, 2, 4, 8) for chunks in (1, 2, 3, 4, 5, 6))

CHUNKS = (1, 2, 4, 8)  # of a rank, where a configuration does not state them
SUMMARY = file_of("mlperf_training")
LORA, BERT, GPT3 = "llama2_70b_lora", "bert", "gpt3"

FLOATS = (
    *("micro_batch", "gradient_bytes", "again", "host_adam_per_s", "moment_bytes", "offloaded"),
)
USUAL_PLAN = {
    "again": 0.0,
    "offloads": 0,
    "host_adam_per_s": 1.0,
    "moment_bytes": BYTES["fp32"],
    "offloaded": 0.0,
    "first": 0,
    "last": 0,
}


def plans_of(**fields: Any) -> Plans:
    """Return plans from columns and scalars; a scalar holds for all plans."""
    count = max(np.size(value) for value in fields.values())
    fields.setdefault("tp_overlaps", fields["overlaps"])
    columns: dict[str, Any] = {
        name: np.full(count, value, np.float64 if name in FLOATS else np.int64)
        for name, value in (USUAL_PLAN | fields).items()
    }
    return Plans(**columns)


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step, with a plan for every option that the source leaves open."""

    row: str
    source: str  # a value of `SOURCES`
    release: str  # of NVIDIA's container or recipe, as in 26.04; empty for other software
    group: tuple[str, str, str]  # source, model and GPU, held out together
    job: Job
    plans: Plans
    seconds: float
    is_mixture: bool
    is_flagged: bool  # for a reason that makes the row useless
    peer_s: float  # Calculon's prediction, else NaN
    useful_flops: float  # of a step on one GPU
    gpus: int

    @property
    def day(self) -> str:
        """The first day of the release's month; empty for other software.

        Releases of 2025 and later are named by year and month.
        """
        return f"20{self.release[:2]}-{self.release[3:5]}-01" if self.release else ""


def measured_steps(reference: Path) -> Iterator[MeasuredStep]:
    """Yield the pre-training steps whose model and GPU are in the catalog."""
    reasons = flagged(reference)
    peers = {row.row_id: row for row in read_records(reference / FACTS.tables["calculon"])}
    for row in read_records(reference / MEASURED):
        if row.step_time_s and row.gbs and row.seq_len and "LoRA" not in row.task:
            step = _step(row, reasons.get(row.row_id, ""), peers.get(row.row_id, Record()))
            if step is not None:
                yield step


def flagged(reference: Path) -> dict[str, str]:
    """Return the joined reasons of flagged rows, by row."""
    reasons = (
        read_frame(reference / FLAGGED).group_by("row_id").agg(pl.col("reason").str.join("; "))
    )
    return dict(reasons.iter_rows())


def contradicts(reason: str) -> bool:
    """Return whether a reason makes a row useless; a missing name or micro-batch does not.

    >>> contradicts("model is Llama3 8B (join)"), contradicts("outlier")
    (False, True)
    """
    return any(word in reason for word in FACTS.useless)


def _step(row: Record, reason: str, peer: Mapping[str, Any]) -> MeasuredStep | None:
    source = next(name for word, name in SOURCES.items() if word in row.source)
    named = re.search(r"model is (.+?) \(join", reason)
    name = named[1] if named else row.model
    model, gpu_name = _model(row, name, source), FACTS.gpus.get(row.gpu, "")
    if model is None or not is_gpu(gpu_name) or row.precision not in FACTS.dtypes:
        return None
    gpu = _gpu(row.gpu, gpu_name)
    tp, pp, cp, ep = (int(row[n] or 1) for n in ("tp", "pp", "cp", "ep"))
    recipe = recipe_of(row, source, model.name, gpu.name)
    plans = _plans(row, source, peer, pp, int(row.gpus) // (tp * pp * cp), cp, recipe)
    if plans is None:
        return None
    is_of_2021 = any(word in row.software for word in ("2021", "v2.5", "DeepSpeed"))
    is_sharded = "sequence" in (row.recompute or "") if source == PAPERS else tp > 1
    job = Job(
        model=model,
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        dtype=FACTS.dtypes[row.precision],
        sequence=int(row.seq_len),
        tp=tp,
        cp=cp,
        ep=ep,
        sequence_parallel=is_sharded,
        attention=recipe.get("attention", FACTS.attention.get(source, jobs.FLASH)),
        cross_entropy="eager" if source == TITAN else "fused",
        expert_overlap=recipe.get("expert_overlap", jobs.EXPERT_OVERLAPS[0]),
        mtp_layers=recipe.get("mtp_layers", 0),
        fusion=jobs.EAGER if source == FOUNDRY or is_of_2021 else jobs.FUSED,
        cuda_graphs=recipe.get("cuda_graphs", False),
        dispatcher=recipe.get("dispatcher", jobs.FLEX),
    )
    return MeasuredStep(
        row=row.row_id,
        source=source,
        release=f"{number:05.2f}" if (number := release_of(row.software)) else "",
        group=(row.source, name, row.gpu),
        job=job,
        plans=plans,
        seconds=float(row.step_time_s),
        is_mixture=model.experts > 0,
        is_flagged=contradicts(reason),
        peer_s=float(peer.get("calculon_s") or np.nan),
        useful_flops=6.0 * model.active_parameters * row.gbs * row.seq_len / row.gpus,
        gpus=int(row.gpus),
    )


def release_of(software: str) -> float:
    """Return the release of NVIDIA's container or recipe, as in 26.04; 0 for other software."""
    found = re.match(r"(?:NeMo/DGX Cloud recipe v)?(\d\d\.\d\d)", software)
    return float(found[1]) if found else 0.0


def recipe_of(row: Record, source: str, model: str, gpu: str) -> Mapping[str, Any]:
    """Return the options of a recipe that its table of results omits; the last match counts."""
    found: Mapping[str, Any] = {}
    is_sharded = str(row.fsdp or "0") not in ("0", "1")
    for recipe in FACTS.recipes:
        if (
            source == recipe.get("source", BRIDGE)
            and model == recipe["model"]
            and gpu in recipe["gpus"]
            and row.precision in recipe.get("precisions", [row.precision])
            and all(recipe.get(name, row[name]) == row[name] for name in ("tp", "pp"))
            and release_of(row.software) >= recipe.get("since", 0.0)
            and row.mbs == recipe.get("mbs", row.mbs)
            and (is_sharded or not recipe.get("sharded"))
        ):
            found = recipe
    return found


def _gpu(stated: str, name: str) -> Gpu:
    """Return the GPU of a row, with the memory that the row states, as in `H100-96GB`."""
    gpu, size = load_gpu(name), re.search(r"(\d+)GB", stated)
    hbm_bytes = 10**9 * int(size[1]) if size else 0
    return replace(gpu, hbm_bytes=hbm_bytes) if hbm_bytes > 1.1 * gpu.hbm_bytes else gpu


def _plans(
    row: Record,
    source: str,
    peer: Mapping[str, Any],
    pp: int,
    dp: int,
    cp: int,
    recipe: Mapping[str, Any],
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
    some = float(recipe.get("recompute_layers", 0))  # per rank, of whole layers
    is_full = "full" in (row.recompute, recipe.get("recompute")) or some > 0
    usual = jobs.OPS if source == TITAN else jobs.SELECTIVE
    partial = jobs.NONE if row.recompute in ("none", None) else usual
    partial = jobs.recompute_of(recipe["recompute"]) if "recompute" in recipe else partial
    layers = recipe.get("layers", 1.0)
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
        recompute=jobs.FULL if is_full else partial,
        zero=3 if is_sharded else 0 if sums_late else 1,
        shards=shards,
        gradient_bytes=BYTES["fp32" if sums_late else "bf16"],
        overlaps=not sums_late,
        tp_overlaps=not sums_late and (source != TITAN or "async" in row.software.lower()),
        again=some / layers if some else is_full,
        offloaded=recipe.get("offload_layers", 0),
    )


def _fits(row: Record, pp: int, chunks: int, micro_batches: int) -> bool:
    is_even = not row.layers or row.layers % (pp * chunks) == 0
    return chunks == 1 or bool(pp > 1 and micro_batches % pp == 0 and is_even)


def _model(row: Record, name: str, source: str) -> LanguageModel | None:
    if row.layers and source in (PAPERS, MEGASCALE):
        return _gpt(row.layers, row.hidden, row.heads)
    if name.startswith("MPT-"):
        size, sequence = name.removeprefix("MPT-"), int(row.seq_len)
        context: dict[str, Any] = {"max_context": sequence, "learned_positions": sequence}
        plain = replace(_gpt(*FACTS.mpt[size]), name=f"mpt_{size}", biases=False, vocab=50_368)
        return replace(plain, **context)
    known = FACTS.models.get(name.split(" (")[0], "")
    return load_model(known) if known and is_model(known) else None


@functools.cache
def _gpt(layers: int, hidden: int, heads: int) -> LanguageModel:
    head_dim, ffn = hidden // heads, 4 * hidden
    shape: dict[str, Any] = {"layers": layers, "hidden": hidden, "head_dim": head_dim, "ffn": ffn}
    name = f"gpt_{layers}_{hidden}"
    gpt3 = load_model("gpt3_175b")
    return replace(gpt3, name=name, vocab=51_200, heads=heads, kv_heads=heads, **shape)


@dataclass(frozen=True)
class TrainingSubmission:
    """The step of one MLPerf system, and the rounds it was submitted in."""

    benchmark: str
    submitter: str
    gpus: int
    job: Job
    plans: Plans
    seconds: float
    rounds: tuple[str, ...]


def submissions(reference: Path) -> Iterator[TrainingSubmission]:
    """Yield systems with stated parallelism and a step time, or a rate that gives one.

    A system that was carried over between rounds counts once.
    """
    found: dict[tuple[Any, ...], tuple[Record, list[str]]] = {}
    for row in records(reference, "mlperf_training", benchmark=list(FACTS.benchmarks)):
        if _is_consistent(row) and _step_seconds(row):
            key = (row.submitter, row.benchmark, row.time_to_train_min_min)
            found.setdefault(key, (row, []))[1].append(row.round)
    for first, rounds in found.values():
        yield _submission(first, tuple(rounds), load_gpu(GPUS[first.accelerator]))
    newest = reference / FACTS.tables["newest"]
    for row in read_records(newest) if newest.is_file() else ():
        if row.tp:
            yield _newest_submission(row)


def _newest_submission(row: Record) -> TrainingSubmission:
    """Return a system of the newest round, whose configuration's name states the parallelism.

    Chunks of the pipeline are the fastest by the model; whole steps replayed as CUDA graphs have
    messages to experts overlapped (`_full_cg`).
    """
    stated = {
        "mbs": 1,
        "vpp": 1,
        "grad_accum": None,
        "config_candidates": row.config_file,
        "train_step_time_median_s": row.train_step_time_s,
        "accelerators_per_node": 4,
    }
    one = _submission(Record(row | stated), (row.round,), load_gpu(row.gpu))
    overlaps = "on" if "_full" + FACTS.graphs_ending in row.config_file else "auto"
    dtype, ep = FACTS.dtypes[row.precision.upper()], int(row.ep)
    plans, count = one.plans, int(one.plans.micro_batches[0])
    counts = [n for n in CHUNKS if n == 1 or (plans.pp[0] > 1 and count % plans.pp[0] == 0)]
    every = plans.where(np.zeros(len(counts), np.int64))
    schedule = np.where(np.array(counts) > 1, INTERLEAVED, ONE_F_ONE_B)
    return replace(
        one,
        job=replace(one.job, dtype=dtype, ep=ep, expert_overlap=overlaps),
        plans=replace(every, chunks=np.array(counts), schedule=schedule),
    )


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
    return bool(row.global_batch_size % (_data_ranks(row) * row.mbs) == 0)


def _data_ranks(row: Record) -> int:
    ranks = (row.tp or 1) * (row.cp or 1) * (row.pp or 1)
    return int(row.dp or row.n_accelerators // ranks)


def _step_seconds(row: Record) -> float:
    """Return the median step time, or the batch over the rate; 0 where neither is known.

    Rates count an evaluation of 10,000 sequences every 20 to 200 steps; GPT-3's is in tokens.
    """
    if row.train_step_time_median_s:
        return float(row.train_step_time_median_s)
    tokens = FACTS.benchmarks[GPT3]["sequence"] if row.benchmark == GPT3 else 1
    rate = row.throughput_median
    return float(row.global_batch_size * tokens / rate) if rate else 0.0


def _submission(row: Record, rounds: tuple[str, ...], gpu: Gpu) -> TrainingSubmission:
    benchmark = FACTS.benchmarks[row.benchmark]
    gpus, tp, cp = int(row.n_accelerators), int(row.tp or 1), int(row.cp or 1)
    is_bert, is_lora = row.benchmark == BERT, row.benchmark == LORA
    dp = gpus if is_bert else _data_ranks(row)
    pp = int(row.pp or gpus // (tp * cp * dp))
    chunks = int(row.vpp or 1) if pp > 1 else 1
    batch = row.global_batch_size / (2 if is_bert else 1)
    configuration = row.config_candidates or ""
    micro_batches = int(row.grad_accum or 1) if is_bert else int(batch // (dp * int(row.mbs or 1)))
    options: dict[str, Any] = {}
    if is_lora:
        swaps = row.round >= FACTS.ulysses_since and gpu.architecture == "blackwell"
        is_one = cp > 1 and micro_batches == 1
        in_fp8 = cp == 1 and gpu.architecture == "hopper"
        options = {
            "layer_graphs": is_one and row.round != FACTS.before_graphs,
            "attention": jobs.FLASH_FP8 if in_fp8 else jobs.FLASH,
            "context_exchange": jobs.ULYSSES if swaps else jobs.ZIGZAG,
        }
    name = benchmark["model"]
    job = Job(
        model=extra_model(name) if name.endswith(".toml") else load_model(name),
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        dtype="fp8",
        sequence=benchmark["sequence"],
        tp=tp,
        cp=cp,
        sequence_parallel=tp > 1,
        lora_rank=16 if is_lora else 0,
        predicted_share=benchmark.get("predicted_share", 1.0),
        mtp_layers=benchmark.get("mtp_layers", 0),
        cuda_graphs=is_bert or FACTS.graphs_ending in configuration,
        **options,
    )
    plans = plans_of(
        pp=pp,
        dp=dp,
        chunks=chunks,
        micro_batch=batch / (dp * micro_batches),
        micro_batches=micro_batches,
        schedule=INTERLEAVED if chunks > 1 else ONE_F_ONE_B,
        recompute=jobs.NONE,
        zero=1,
        shards=min(dp, int(row.accelerators_per_node)) if is_bert else dp * cp,
        gradient_bytes=2.0,
        overlaps=not is_bert or FACTS.overlap_ending in configuration,
    )
    seconds = _step_seconds(row)
    return TrainingSubmission(row.benchmark, row.submitter, gpus, job, plans, seconds, rounds)


def iterations(reference: Path) -> Iterator[Record]:
    """Yield Sailor's plans whose layers were all profiled, without copies and broken rows.

    A plan was measured as a whole. Of the profile of layers it has `stages`, the forward, backward
    and update seconds of each; `gradient_bytes` of the stage with most weights, on one rank; and
    `held_bytes`, weights and activations.
    """
    tables = FACTS.sailor
    times = {
        (row.model, row.gpu, row.mbs, row.tp, int(row.layer)): (row.fwd_s, row.bwd_s, row.update_s)
        for row in read_records(reference / tables["profiles"])
    }
    sizes = {
        (row.model, int(row.mbs), int(row.layer)): row
        for row in read_records(reference / tables["layers"])
    }
    for row in read_records(reference / tables["iterations"]):
        if [row.model, row.gbs] != tables["broken"] and row.file not in tables["copies"]:
            found = _profiled_plan(row, times, sizes)
            if found is not None:
                yield found


def _profiled_plan(
    row: Record,
    times: Mapping[tuple[Any, ...], tuple[float, float, float]],
    sizes: Mapping[tuple[str, int, int], Record],
) -> Record | None:
    """Return one plan; None where a layer was not timed."""
    [plan] = json.loads(row.pipeline_list)
    layers, mbs = plan["layers_per_stage"], row.mbs
    micro_batches = row.gbs // (row.dp * mbs)
    stages: list[tuple[float, float, float]] = []
    most, held = 0.0, 0.0
    for stage, replicas in zip(layers, plan["tmp_per_stage"], strict=True):
        kinds = {(replica[0][0][0], replica[1]) for replica in replicas}
        sums = []
        for gpu, tp in kinds:
            keys = [(row.model, gpu, mbs, tp, layer) for layer in stage]
            if any(key not in times for key in keys):
                return None
            forward, backward, update = map(sum, zip(*(times[key] for key in keys), strict=True))
            sums.append((forward, backward, update))
        stages.append(max(sums, key=lambda one: one[0] + one[1]))
        tp = max(tp for _, tp in kinds)
        known = [sizes[row.model, tp, n] for n in stage if (row.model, tp, n) in sizes]
        weights = float(sum(one.params_bytes for one in known))
        most = max(most, weights)
        in_flight = min(len(layers) - len(stages) + 1, micro_batches)
        # fp32 weights, gradients and Adam's two moments; logits in four copies where there are any
        logits = 4 * mbs * known[-1].act_output_bytes if stage is layers[-1] and known else 0.0
        activations = in_flight * mbs * sum(one.act_mem_bytes for one in known)
        held = max(held, 4 * weights + activations + logits)
    derived = {"stages": stages, "gradient_bytes": most, "held_bytes": held}
    return Record(row | derived | {"micro_batches": micro_batches})
