"""Submissions to MLPerf Training of language models whose configurations state their parallelism.

Systems that were carried over between rounds count once. All multiply in FP8. GPT-3 and
Llama-3.1-405B are pre-trained; Llama-2-70B is fine-tuned by adapters of rank 16 on packed sequences
of 8,192 tokens (rules of the rounds; NeMo's configurations of the submitters). BERT's submissions
pack two sequences into 512 tokens: two of half the length, attended to whole, have as many pairs of
tokens as one causal sequence. Their passes are CUDA graphs and their loop reads nothing back
(`--use_cuda_graph`, `--log_freq=0`); their optimizer shards states inside each node and sums over
nodes after the backward pass (`--distributed_lamb`, `--dwu-num-blocks=1`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import GPUS, extra_model
from lab.tables.records import file_of, records
from lab.tables.rows import Record
from lab.tables.training.plans import plans_of
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.training.job import FLASH, FLASH_FP8, NONE, ULYSSES, ZIGZAG, Job, Plans
from simulators.training.schedule import INTERLEAVED, ONE_F_ONE_B

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
