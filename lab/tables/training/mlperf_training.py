"""Submissions to MLPerf Training of language models, whose cuts their configurations state.

Systems that were carried over between rounds count once. All multiply in FP8; GPT-3 and
Llama-3.1-405B are pre-trained, Llama-2-70B fine-tuned by adapters of rank 16 on packed sequences of
8,192 tokens (rules of the rounds; NeMo's configurations of the submitters). BERT's submissions pack
two sequences into 512 tokens each, as their batches and configurations state: two of half the
length, seen whole, have as many pairs of tokens as a causal sequence of all. Their passes are CUDA
graphs, and their loop reads nothing back between steps (`--use_cuda_graph`, `--log_freq=0`). Their
optimiser shares states out inside each node and sums over nodes, after the backward pass
(`--distributed_lamb`, whose `--dwu-group-size` is a node and `--dwu-num-blocks` one).
Rates that they log count an evaluation of 10,000 sequences every 20 to 200 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.tables.rows import read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.training.job import FLASH, FLASH_FP8, Job
from simulators.training.plan import NONE, Plans
from simulators.training.schedule.orders import INTERLEAVED, ONE_F_ONE_B
from simulators.training.work.messages import ULYSSES, ZIGZAG

SUMMARY = "mlperf/training_summary.parquet"

LORA, BERT = "llama2_70b_lora", "bert"
BENCHMARKS: Mapping[str, tuple[str, int]] = {
    "gpt3": ("gpt3_175b", 2048),
    "llama31_405b": ("llama3_1_405b", 8192),
    LORA: ("llama2_70b", 8192),
    BERT: ("", 512),
}
"""Catalog's model, if it has one, and tokens of a sequence, by benchmark."""

BERT_LARGE = LanguageModel(
    name="bert_large",
    layers=24,
    hidden=1024,
    heads=16,
    kv_heads=16,
    head_dim=64,
    ffn=4096,
    vocab=30_522,
    max_context=512,
    gated_ffn=False,
    tied_embeddings=True,
    norm="layer_norm",
    biases=True,
    learned_positions=512,
    source="Devlin et al., BERT (2019)",
)
MASKED = 0.15
"""Share of BERT's tokens that are predicted (ibid.)."""

BEFORE_GRAPHS, SWAPPING = "v4.0", "v5.0"
"""Round in which adapters are trained without CUDA graphs; from which on context ranks of Blackwell
swap heads for tokens (`cp_comm_type: a2a` of its configurations)."""
WHOLE_GRAPHS = "_cg"
"""How the names of configurations of pre-training end that replay whole steps as CUDA graphs."""

IN_BLOCKS = "_clipafter"
"""How the name of BERT's one configuration ends that sums gradients in blocks, behind the backward
pass (`--dwu-overlap-reductions`)."""

GPUS = {
    "NVIDIA H100-SXM5-80GB": "h100_sxm",
    "NVIDIA H100-SXM-80GB": "h100_sxm",
    "NVIDIA H200-SXM5-141GB": "h200_sxm",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "b200_sxm",
    "NVIDIA Blackwell GPU (GB200)": "gb200",
}


@dataclass(frozen=True)
class Submission:
    """One system's step."""

    name: str
    benchmark: str
    submitter: str
    gpus: int
    job: Job
    plans: Plans
    seconds: float
    rounds: tuple[str, ...]  # in which it was submitted: software changes between them


def submissions(reference: Path) -> Iterator[Submission]:
    """Yield systems with a stated cut and a step time, or a rate that gives one."""
    found: dict[tuple[Any, ...], tuple[Mapping[str, Any], list[str]]] = {}
    for row in read_records(reference / SUMMARY):
        usable = row["benchmark"] in BENCHMARKS and row["accelerator"] in GPUS
        if usable and _is_consistent(row) and step_seconds(row):
            key = (row["submitter"], row["benchmark"], row["time_to_train_min_min"])
            found.setdefault(key, (row, []))[1].append(row["round"])
    for first, rounds in found.values():
        yield _submission(first, tuple(rounds))


def _is_consistent(row: Mapping[str, Any]) -> bool:
    """Say whether the configuration gives the logged batch; BERT's counts pairs or sequences.

    It must give the logged micro-batches too: else the system was cut in another way. Where it
    states the cut and the micro-batch but no share of the batch, they must divide it.
    """
    stated = (row["minibs"] or 0) * row["n_accelerators"]
    if row["benchmark"] == BERT:
        return bool(row["global_batch_size"] in (stated, 2 * stated))
    if row["minibs"] and row["grad_accum"] not in (None, row["minibs"] // (row["mbs"] or 1)):
        return False
    if stated or not (row["config_unique"] and row["tp"] and row["pp"] and row["mbs"]):
        return bool(row["config_gbs_consistent"])
    return bool(row["global_batch_size"] % (data_ranks(row) * row["mbs"]) == 0)


def data_ranks(row: Mapping[str, Any]) -> int:
    """Return the replicas that a cut leaves of a system's GPUs."""
    ranks = (row["tp"] or 1) * (row["cp"] or 1) * (row["pp"] or 1)
    return int(row["dp"] or row["n_accelerators"] // ranks)


def step_seconds(row: Mapping[str, Any]) -> float:
    """Return the median step, or the batch over the rate; GPT-3's rate is in tokens."""
    if row["train_step_time_median_s"]:
        return float(row["train_step_time_median_s"])
    if not row["throughput_median"]:
        return 0.0
    tokens = BENCHMARKS[row["benchmark"]][1] if row["benchmark"] == "gpt3" else 1
    return float(row["global_batch_size"] * tokens / row["throughput_median"])


def _as_configured(
    row: Mapping[str, Any], architecture: str, cp: int, micro_batches: int
) -> dict[str, Any]:
    """Return what published configurations of systems that train adapters ask for besides.

    Those of one sequence a step over context ranks replay layers as CUDA graphs from the second
    round on (`LAYER_CUDA_GRAPH`, `MCORE_CUDA_GRAPH`); on Hopper whole sequences are attended to in
    FP8 (`FP8_DPA`), shared ones are not.
    """
    if row["benchmark"] != LORA:
        return {}
    swaps = row["round"] >= SWAPPING and architecture == "blackwell"
    return {
        "layer_graphs": cp > 1 and micro_batches == 1 and row["round"] != BEFORE_GRAPHS,
        "attention": FLASH_FP8 if cp == 1 and architecture == "hopper" else FLASH,
        "context_exchange": ULYSSES if swaps else ZIGZAG,
    }


def _submission(row: Mapping[str, Any], rounds: tuple[str, ...]) -> Submission:
    model, sequence = BENCHMARKS[row["benchmark"]]
    gpu = load_gpu(GPUS[row["accelerator"]])
    gpus = int(row["n_accelerators"])
    tp, cp = int(row["tp"] or 1), int(row["cp"] or 1)
    stated = row["pp"] or (8 if row["benchmark"] == "gpt3" else 1)
    is_bert = row["benchmark"] == BERT
    dp = gpus if is_bert else data_ranks(row)
    pp = int(gpus // (tp * cp * dp)) if not row["pp"] else int(stated)
    chunks = int(row["vpp"] or 1) if pp > 1 else 1
    batch = row["global_batch_size"] / (2 if is_bert else 1)
    is_summed_after = is_bert and IN_BLOCKS not in (row["config_candidates"] or "")
    m = int(row["grad_accum"] or 1) if is_bert else int(batch // (dp * int(row["mbs"] or 1)))
    job = Job(
        model=BERT_LARGE if is_bert else load_model(model),
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        dtype="fp8",
        sequence=sequence,
        tp=tp,
        cp=cp,
        sequence_parallel=tp > 1,
        lora_rank=16 if row["benchmark"] == LORA else 0,
        predicted_share=MASKED if is_bert else 1.0,
        cuda_graphs=is_bert or WHOLE_GRAPHS in (row["config_candidates"] or ""),
        **_as_configured(row, gpu.architecture, cp, m),
    )

    def one(value: float) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([value], np.int64)

    plans = Plans(
        pp=one(pp),
        dp=one(dp),
        chunks=one(chunks),
        micro_batch=np.array([batch / (dp * m)]),
        micro_batches=one(m),
        schedule=one(INTERLEAVED if chunks > 1 else ONE_F_ONE_B),
        recompute=one(NONE),
        zero=one(1),
        shards=one(min(dp, int(row["accelerators_per_node"])) if is_bert else dp * cp),
        gradient_bytes=np.array([2.0]),
        overlaps=one(not is_summed_after),
        again=np.zeros(1),
        offloads=one(0),
        host_adam_per_s=np.ones(1),
    )
    name = f"{row['submitter']} {row['system']}"
    seconds = step_seconds(row)
    return Submission(name, row["benchmark"], row["submitter"], gpus, job, plans, seconds, rounds)
