"""Export training designs as torchrun commands of Megatron-LM.

Options are those of `megatron/training/arguments.py`, Megatron-LM, core 0.14 (2025). Designs
without an option are refused: schedules other than 1F1B (interleaved or not), unbalanced rings,
adapters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy.quoting import Options, chosen, command, comment
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.schedule import layers_of_chunk
from simulators.training.simulator import SIMULATOR

TARGET = "megatron"
MASTER = "$MASTER_ADDR:29500"
"""Rendezvous of the ranks; the shell expands the address."""
SCHEDULES = ("1f1b", "interleaved")
CP_COMM_TYPES = {"zigzag": "p2p", "ulysses": "a2a", "gather": "all_gather"}
PRECISION = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp4": "--bf16 --fp4-format e2m1",
}
GRADIENT_DTYPES = ("fp32", "bf16")
MAX_QUEUES = 32
"""Largest `CUDA_DEVICE_MAX_CONNECTIONS` (CUDA C++ Programming Guide)."""
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


class TrainingDeployments:
    """Writes deployments for `sweeper export`."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the script that starts a design; a comment contains `name`.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: unknown target.
            UserError: Megatron-LM has no option for a feature of the design.
        """
        if target not in ("", TARGET):
            raise UnknownNameError("target", target, (TARGET,))
        design = TrainingPoint(**point)
        [answer] = SIMULATOR.evaluate(batch_of([design])).to_pylist()
        if answer["status"] == "infeasible":
            reason, _, words = answer["reason"].partition(": ")
            raise Infeasible(reason, words)
        return script(replace(design, tokens=answer["run_tokens"]), name)


DEPLOYMENTS = TrainingDeployments()


def script(design: TrainingPoint, name: str = "") -> str:
    """Return the shell script of a design, one option per line.

    Raises:
        UserError: Megatron-LM has no option for a feature of the design.
    """
    gpus = design.tp * design.pp * design.cp * design.dp
    per_node = min(gpus, cluster_for(design.cluster, load_gpu(design.gpu)).gpus_per_node)
    # Tensor and context parallelism need one queue, so that messages start in the order of the
    # kernels around them; FSDP and overlapped expert messages need many.
    has_many = (design.overlap and _hides_experts(design)) or design.zero in SHARDING
    start = (
        f"env CUDA_DEVICE_MAX_CONNECTIONS={MAX_QUEUES if has_many else 1} torchrun "
        f"--nnodes {math.ceil(gpus / per_node)} --nproc-per-node {per_node} "
        f"--rdzv-backend c10d --rdzv-endpoint {MASTER} pretrain_gpt.py"
    )
    header = comment(f"{name or 'design'}: {design.model} on {gpus} {design.gpu}")
    return f"#!/bin/sh\n{header}exec {command([*start.split(), *arguments(design)], [MASTER])}"


def arguments(design: TrainingPoint) -> list[str]:
    """Return the options of Megatron-LM.

    Raises:
        UserError: Megatron-LM has no option for a feature of the design.
    """
    _check(design)
    model = load_model(design.model)
    return chosen([*_model(model, design), *_ranks(design, model), *_run(design, model)])


def _model(model: LanguageModel, design: TrainingPoint) -> Options:
    """Return the options of the model's shape."""
    is_gqa = model.kv_heads < model.heads and not model.is_latent
    positions = max(design.sequence, model.learned_positions)
    shared = model.shared_experts * model.expert_ffn
    layout = f"[0]*{model.dense_layers}+[1]*{model.expert_layers}"
    return [
        (True, f"--num-layers {model.layers} --hidden-size {model.hidden}"),
        (True, f"--ffn-hidden-size {model.ffn} --num-attention-heads {model.heads}"),
        (True, f"--kv-channels {model.head_dim} --seq-length {design.sequence}"),
        (True, f"--max-position-embeddings {positions}"),
        (is_gqa, f"--group-query-attention --num-query-groups {model.kv_heads}"),
        (model.gated_ffn, "--swiglu"),
        (model.norm == "rms_norm", "--normalization RMSNorm"),
        (model.learned_positions, "--position-embedding-type learned_absolute"),
        (not model.learned_positions, "--position-embedding-type rope"),
        (not model.tied_embeddings, "--untie-embeddings-and-output-weights"),
        (not model.biases, "--disable-bias-linear"),
        (model.experts, f"--num-experts {model.experts} --moe-router-topk {model.top_k}"),
        (model.experts, f"--moe-ffn-hidden-size {model.expert_ffn}"),
        (model.experts, "--moe-token-dispatcher-type alltoall --moe-grouped-gemm"),
        (model.shared_experts, f"--moe-shared-expert-intermediate-size {shared}"),
        (model.experts and model.dense_layers, f"--moe-layer-freq {layout}"),
        (model.is_latent, f"--multi-latent-attention --kv-lora-rank {model.kv_lora_rank}"),
        (model.is_latent, f"--qk-head-dim {model.qk_nope_head_dim}"),
        (model.is_latent, f"--qk-pos-emb-head-dim {model.qk_rope_head_dim}"),
        (model.is_latent, f"--v-head-dim {model.v_head_dim}"),
        (model.is_latent and model.q_lora_rank, f"--q-lora-rank {model.q_lora_rank}"),
        (model.qk_norm or model.is_latent, "--qk-layernorm"),
        (model.qkv_biases, "--add-qkv-bias"),
    ]


def _ranks(design: TrainingPoint, model: LanguageModel) -> Options:
    """Return the options of parallelism."""
    number = design.pp * design.chunks
    is_even = model.layers % number == 0
    layers = f"--num-layers-per-virtual-pipeline-stage {model.layers // number}"
    exchange = CP_COMM_TYPES.get(design.context_exchange)
    return [
        (True, f"--tensor-model-parallel-size {design.tp}"),
        (True, f"--pipeline-model-parallel-size {design.pp}"),
        (True, f"--context-parallel-size {design.cp}"),
        (not is_even, f"--pipeline-model-parallel-layout {_layout(model.layers, number)}"),
        (is_even and design.chunks > 1, layers),
        (design.cp > 1, f"--cp-comm-type {exchange}"),
        (model.experts, f"--expert-model-parallel-size {design.ep}"),
        (model.experts, f"--expert-tensor-parallel-size {design.expert_tp}"),
        (design.sequence_parallel and design.tp > 1, "--sequence-parallel"),
    ]


def _run(design: TrainingPoint, model: LanguageModel) -> Options:
    """Return the options of precision, batches, recomputation, sharding and overlap."""
    iterations = math.ceil(design.tokens / (design.batch * design.sequence))
    activations = "moe_act" if model.experts else "mlp_act"
    selected = f"--recompute-granularity selective --recompute-modules layernorm {activations}"
    method = "block" if design.recompute_layers else "uniform"
    number = design.recompute_layers or 1
    full = f"--recompute-method {method} --recompute-num-layers {number}"
    fsdp = design.zero in SHARDING
    sharding = f"--data-parallel-sharding-strategy {SHARDING.get(design.zero)}"
    graphs = "--cuda-graph-impl local --cuda-graph-scope full_iteration"
    return [
        (True, PRECISION[design.dtype]),
        (True, f"--micro-batch-size {design.micro_batch} --global-batch-size {design.batch}"),
        (True, f"--train-iters {iterations}"),
        (design.recompute == "selective", "--recompute-activations"),
        (design.recompute == "elementwise", selected),
        (design.recompute == "full", f"--recompute-granularity full {full}"),
        (design.offload, "--optimizer-cpu-offload --use-precision-aware-optimizer"),
        (design.zero, "--use-distributed-optimizer"),
        (fsdp, f"--use-megatron-fsdp {sharding} --ckpt-format fsdp_dtensor"),
        (design.overlap, "--overlap-grad-reduce"),
        (design.overlap and design.zero, "--overlap-param-gather"),
        (design.overlap and design.tp > 1 and design.sequence_parallel, "--tp-comm-overlap"),
        (design.overlap and _hides_experts(design), "--overlap-moe-expert-parallel-comm"),
        (design.fusion == "eager", "--no-gradient-accumulation-fusion"),
        (design.cuda_graphs, f"{graphs} --no-check-for-nan-in-loss-and-grad"),
        (design.gradient_dtype == "bf16", "--grad-reduce-in-bf16"),
        (True, f"--attention-backend {'unfused' if design.attention == 'unfused' else 'flash'}"),
    ]


def _check(design: TrainingPoint) -> None:
    """Raise `UserError` if Megatron-LM has no option for a feature of a design."""
    exchange, ring = design.context_exchange, design.cp > 1
    experts, full = load_model(design.model).experts, design.recompute == "full"
    not_sequence_parallel = design.tp > 1 and not design.sequence_parallel
    reasons = {
        f"has no schedule '{design.schedule}', it has {', '.join(SCHEDULES)}": (
            design.schedule not in SCHEDULES
        ),
        f"exchanges keys of context ranks by {', '.join(CP_COMM_TYPES)}, not '{exchange}'": (
            ring and exchange not in CP_COMM_TYPES
        ),
        f"sums gradients in {', '.join(GRADIENT_DTYPES)}, not {design.gradient_dtype}": (
            design.gradient_dtype not in GRADIENT_DTYPES
        ),
        f"needs context sequences of a multiple of {2 * design.cp} tokens": (
            ring and design.sequence % (2 * design.cp)
        ),
        "has no unfused attention for context ranks": ring and design.attention == "unfused",
        "does not train experts in fp16": experts and design.dtype == "fp16",
        "needs sequence_parallel for experts on tensor ranks": experts and not_sequence_parallel,
        "does not replay full recomputation in CUDA graphs": design.cuda_graphs and full,
        "has no option for attention in fp8; attention: flash": design.attention == "flash_fp8",
        "(pretrain_gpt.py) trains no adapters; lora_rank must be 0": design.lora_rank,
        "is exported with sharding over all data ranks; shard_ranks: 0": design.shard_ranks,
    }
    for reason, is_refused in reasons.items():
        if is_refused:
            raise UserError(f"Megatron-LM {reason}")


def _layout(layers: int, number: int) -> str:
    """Return the pipeline layout in Megatron-LM's letters: embedding, layers by chunk, loss.

    >>> _layout(14, 4)
    'Et*3|t*4|t*4|t*3L'
    """
    chunks = [layers_of_chunk(chunk, number, layers, layers) for chunk in range(number)]
    return "E" + "|".join(f"t*{n}" if n else "" for n in chunks) + "L"


def _hides_experts(design: TrainingPoint) -> bool:
    """Return whether expert communication overlaps with another micro-batch."""
    cluster = cluster_for(design.cluster, load_gpu(design.gpu))
    crosses = design.ep * design.expert_tp > cluster.gpus_per_node
    return crosses and design.chunks > 1 and design.recompute != "full"
