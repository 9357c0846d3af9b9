"""Memory of a rank: weights, gradients, optimizer states, activations saved for the backward pass.

Adam in mixed precision keeps a 16-bit weight, a gradient, and 12 bytes of states; data-parallel
ranks shard the states, then the gradients, then the weights (Rajbhandari et al., ZeRO, 2020).
Gradients summed in 16 bits take 2 bytes; unless weights are sharded too, the optimizer's shard
takes 4 more for an fp32 copy (Megatron-LM, distributed optimizer). Under NVFP4 each weight also has
two 4-bit copies, one per direction; weights in fp8 are kept as such a pair instead of 16 bits.

The backward pass reads the inputs of each operator: activations are counted tensor by tensor, as by
Korthikanti et al. (Reducing activation recomputation, 2022). A product in 8 or 4 bits saves its
input quantized (Transformer Engine). The schedule sets the number of micro-batches that a rank
keeps: the first, second and last rank are compared, since the first may have a layer less, or all
ranks of a layout and of models with a few dense layers before experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.training.job import (
    ACTIVATIONS,
    CORE_ATTN,
    FLASH_FP8,
    FULL,
    LAYERNORM,
    LORA_TARGETS,
    MLA_UP,
    MLP,
    MOE,
    OPS,
    SHARED_GRADIENTS,
    UNFUSED,
    Job,
    Plans,
    hides_expert_exchange,
)
from simulators.training.schedule import DUALPIPE, DUALPIPE_V, GPIPE, INTERLEAVED, ZERO_BUBBLE
from simulators.workload.llm.parallelism import kv_heads_per_gpu
from simulators.workload.precision import BYTES

WEIGHT = BYTES["bf16"]
MASTER_BYTES = BYTES["fp32"]
"""Optimizer's fp32 copy of a weight, besides Adam's two moments."""

BLOCK_SCALES = {"fp4": 1.0 / 16.0}
"""Bytes of scales per number: NVFP4 has an 8-bit one per 16 numbers."""

RESERVED_BYTES = 2.0e9
"""Reserved memory of a rank: CUDA context, NCCL buffers. A choice."""

LOGIT_BYTES = {"fused": 2.0 + 4.0, "eager": 2.0 + 4.0 + 4.0 + 4.0}
"""Bytes per logit at the loss: logits in 16 bits and their probabilities in fp32; PyTorch's loss
also keeps an fp32 copy of the logits and of their gradients."""
PARTED_LOGIT_BYTES = {"fused": 0.0, "eager": 2.0}
"""More bytes per logit where tensor ranks hold parts of the vocabulary: PyTorch's loss then holds
the logarithms of the probabilities, their exponentials, a sum and gradients, 16 bytes in fp32
(torch.distributed.tensor.parallel.loss)."""

PREFETCHED = 2.0
"""Layers whose weights are unsharded at a time under full sharding: the one that runs, the next."""

SPREAD = 0.05
"""Relative standard deviation of a rank's peak memory around the account, by which the probability
of running out is computed. Measured peaks of published plans differ from the account by 5 % (claims
on peak memory): by fragmentation of the allocator, workspaces of libraries and uneven experts."""


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes on the fullest rank of each row, by use."""

    weights: Floats
    gradients: Floats
    states: Floats
    activations: Floats
    workspace: Floats
    rank: NDArray[np.int64]  # of the pipeline, the fullest one

    @property
    def total(self) -> Floats:
        """Total bytes, reserved memory included."""
        parts = self.weights + self.gradients + self.states + self.activations
        return parts + self.workspace + RESERVED_BYTES

    def where(self, chosen: NDArray[np.bool_]) -> RankMemory:
        """Return a selection of the rows."""
        return RankMemory(**{name: column[chosen] for name, column in vars(self).items()})


def oom_probability(needed: Floats, hbm_bytes: float) -> Floats:
    """Return the probability that a rank needs more memory than its GPU has.

    >>> oom_probability(np.array([60e9, 80e9]), 80e9).round(3).tolist()
    [0.0, 0.5]
    """
    free = (hbm_bytes / needed - 1.0) / (SPREAD * sqrt(2.0))
    found, is_near = np.where(free > 0.0, 0.0, 1.0), np.abs(free) < 4.0  # else 0 or 1 when rounded
    found[is_near] = [round(0.5 * erfc(one), 6) for one in free[is_near].tolist()]
    return found


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Number of weights on one rank: a row for each of `Plans.ranks`."""

    shared: Floats  # all but routed experts
    experts: Floats  # routed experts, which are distributed over data ranks
    largest: Floats  # of what is gathered at a time under full sharding: a layer, or a table
    layers: Floats  # all but tables of tokens, in the precision of products


def parameters(job: Job, plans: Plans) -> Parameters:
    """Return the number of weights per rank on three ranks of each row's pipeline."""
    model = job.model
    ffn = model.dense_ffn_parameters / job.tp
    attention = model.attention_parameters / job.tp + 2 * model.norm_parameters
    shared = model.shared_parameters / job.tp
    routed = model.experts * model.expert_parameters / (job.ep * job.expert_tp)
    router = model.hidden * model.experts
    table = model.vocab * model.hidden / job.tp + model.learned_positions * model.hidden
    head = model.vocab * model.hidden / job.tp + model.norm_parameters
    layers, dense, has_table, has_head = _stages(job, plans)
    untied = np.where(has_table > 0, 0.0 if model.tied_embeddings else 1.0, 1.0)
    held = layers * attention + dense * ffn + (layers - dense) * (shared + router)
    largest = attention + max(ffn, shared + router if model.experts else 0.0)
    return Parameters(
        shared=held + has_table * table + has_head * untied * head,
        experts=(layers - dense) * routed,
        largest=np.maximum(largest + np.where(layers > dense, routed, 0.0), has_table * table),
        layers=held + (layers - dense) * routed,
    )


def most_weights(job: Job, plans: Plans, held: Parameters) -> tuple[Floats, Floats]:
    """Return shared and expert weights of the first rank, or of the fullest of uneven stages."""
    is_uneven = (plans.first > 0) | (plans.last > 0) | (job.pipeline_layout != "")
    rank = np.where(is_uneven, np.argmax(held.shared + held.experts, axis=0), 0)
    each = np.arange(plans.size)
    return held.shared[rank, each], held.experts[rank, each]


def _stages(job: Job, plans: Plans) -> Floats:
    """Return layers, dense layers, embeddings and heads, each (ranks, rows).

    Layers of multi-token prediction are included; their rank has an embedding and a head.
    """
    held = plans.stages(job.pipelined).astype(np.float64)
    dense, experts, tables, heads, predicting = np.moveaxis(held, 2, 0)
    dense = dense + (0.0 if job.model.experts else predicting)
    experts = experts + (predicting if job.model.experts else 0.0)
    ends = (np.minimum(1.0, predicting + one) for one in (tables, heads))
    return np.stack([dense + experts, dense, *ends])


def stage_name(rank: int, pp: int) -> str:
    """Return the words for a rank of a pipeline.

    >>> [stage_name(rank, 4) for rank in range(4)]
    ['first stage', 'second stage', 'third stage', 'last stage']
    """
    if 1 < rank == pp - 1:
        return "last stage"
    return f"{('first', 'second', 'third')[rank] if rank < 3 else f'{rank + 1}th'} stage"


def saved_bytes(dtype: str) -> float:
    """Return the bytes of a number that a product of this precision saves of its input."""
    return BYTES[dtype if dtype in ("fp8", "fp4") else "bf16"] + BLOCK_SCALES.get(dtype, 0.0)


def activations(job: Job, *, has_experts: bool) -> Iterator[tuple[float, int]]:
    """Yield the bytes per token of each saved tensor of a layer, and the modules that drop it.

    A tensor that no module drops (0) is kept unless the whole layer is recomputed.
    """
    model, on_tp = job.model, 1.0 / job.tp
    hidden, product = model.hidden / job.norm_ranks, saved_bytes(job.dtype)
    between, core = BYTES[job.activation_dtype], BYTES["bf16"]
    attention = BYTES["fp8" if job.attention == FLASH_FP8 else "bf16"]
    is_adapter = bool(job.lora_rank) and job.lora_targets != LORA_TARGETS[1]
    heads = model.heads * on_tp
    yield core * hidden, 0  # input of the norm
    yield product * hidden, LAYERNORM | OPS
    if model.is_latent:
        latent = float(model.q_lora_rank + model.kv_lora_rank)
        yield core * (latent + model.qk_rope_head_dim), 0
        yield product * latent, MLA_UP
        width = 2.0 * (model.qk_nope_head_dim + model.qk_rope_head_dim) + model.v_head_dim
        yield attention * heads * width, MLA_UP
        results = heads * model.v_head_dim
    else:
        keys = 2.0 * kv_heads_per_gpu(model, job.layout)
        yield attention * (heads + keys / 2.0) * model.head_dim, 0
        yield attention * keys / 2.0 * model.head_dim, OPS
        results = heads * model.head_dim
    yield attention * results, 0
    if product != attention:
        yield product * results, OPS  # quantized for the projection
    if job.attention == UNFUSED:
        yield 5.0 * heads * job.sequence, CORE_ATTN
        yield 2.0 * hidden, 0  # masks of two dropouts
    yield core * hidden, 0  # input of the second norm
    wide = 2.0 if model.gated_ffn else 1.0  # of which one product is kept under `OPS`
    if has_experts:
        tokens = model.top_k * on_tp * job.busiest
        yield core * hidden, LAYERNORM | OPS  # read by router, dispatch and shared expert
        if is_adapter:  # frozen products without adapters save no input
            yield between * wide * (tokens * model.expert_ffn + model.shared_width * on_tp), MOE
            return
        gathered = tokens * job.expert_tp  # by the ranks that share experts
        yield product * gathered * model.hidden, MOE | OPS
        yield between * tokens * model.expert_ffn, MOE
        yield between * (wide - 1.0) * tokens * model.expert_ffn, MOE | OPS
        yield product * tokens * model.expert_ffn, ACTIVATIONS | MOE | OPS
        if model.shared_width:
            shared = model.shared_width * on_tp
            yield (product * hidden if product != core else 0.0), MOE | OPS
            yield between * shared, MOE
            yield between * (wide - 1.0) * shared, MOE | OPS
            yield product * shared, ACTIVATIONS | MOE | OPS
        return
    ffn = model.ffn * on_tp
    if is_adapter:  # frozen products without adapters save no input
        yield between * wide * ffn, MLP
        return
    yield product * hidden, LAYERNORM | MLP | OPS
    yield between * ffn, MLP
    yield between * (wide - 1.0) * ffn, MLP | OPS
    yield product * ffn, ACTIVATIONS | MLP | OPS


def layer_activation_bytes(job: Job, plans: Plans, *, has_experts: bool) -> tuple[Floats, Floats]:
    """Return the bytes per token and layer that await the backward pass, and those restored.

    Recomputation restores what it dropped of one layer at a time.
    """
    kept, dropped = np.zeros(plans.size), np.zeros(plans.size)
    for size, modules in activations(job, has_experts=has_experts):
        is_dropped = plans.recompute & modules > 0
        kept += np.where(is_dropped, 0.0, size)
        dropped += np.where(is_dropped, size, 0.0)
    input_only = BYTES["bf16"] * job.model.hidden / job.norm_ranks
    is_full = plans.recompute == FULL
    return (
        plans.again * input_only + (1.0 - plans.again) * kept,
        np.where(is_full, kept, dropped),
    )


def kept_chunks(job: Job, plans: Plans) -> Floats:
    """Return the micro-batches whose activations each of the ranks holds at a time, (ranks, rows).

    A micro-batch in flight through some chunks of a rank counts by the share of the chunks.
    """
    pp, m, chunks, rank = plans.pp, plans.micro_batches, plans.chunks, plans.ranks(job.pipelined)
    warm_up = 2 * (pp - 1 - rank) + (chunks - 1) * pp + 1 + hides_expert_exchange(job, plans)
    kept = np.where(
        plans.schedule == INTERLEAVED,
        np.minimum(warm_up, m * chunks) / chunks,
        np.minimum(pp - rank, m),
    )
    kept = np.where(plans.schedule == ZERO_BUBBLE, np.minimum(pp, m), kept)
    kept = np.where(plans.schedule == DUALPIPE, (pp + 1) / 2, kept)  # of either stage
    kept = np.where(plans.schedule == DUALPIPE_V, pp + 0.5, kept)
    return np.where(plans.schedule == GPIPE, m, kept).astype(np.float64)


def states_bytes(plans: Plans) -> Floats:
    """Return the bytes of optimizer states per weight."""
    is_narrow = (plans.gradient_bytes < BYTES["fp32"]) & (plans.zero < 3)
    return MASTER_BYTES + 2.0 * plans.moment_bytes + np.where(is_narrow, BYTES["fp32"], 0.0)


def rank_memory(job: Job, plans: Plans) -> RankMemory:
    """Return the memory of the fullest rank of each row."""
    model = job.model
    weights = parameters(job, plans)
    ranks = plans.shards
    expert_ranks = np.maximum(1.0, ranks * job.tp / (job.ep * job.expert_tp))
    tokens = plans.micro_batch * job.sequence / job.cp
    layers, dense, _, has_head = _stages(job, plans)
    dense_bytes, dense_again = layer_activation_bytes(job, plans, has_experts=False)
    expert_bytes, expert_again = layer_activation_bytes(job, plans, has_experts=True)
    layer = (dense * dense_bytes + (layers - dense) * expert_bytes) / np.maximum(1.0, layers)
    again = np.where(layers > dense, expert_again, dense_again)
    is_parted = job.tp > 1
    logit = LOGIT_BYTES[job.cross_entropy] + is_parted * PARTED_LOGIT_BYTES[job.cross_entropy]
    logits = tokens * job.predicted_share * model.vocab / job.tp * logit
    # Sequence-parallel ranks gather the input of a product.
    on_all_ranks = tokens * model.hidden * BYTES["bf16"] * (is_parted and job.sequence_parallel)
    on_gpu = 1.0 - plans.offloads
    gradient = np.where(plans.gradient_bytes < BYTES["fp32"], BYTES["bf16"], BYTES["fp32"])
    gathered = (PREFETCHED * WEIGHT + gradient * job.trained_share) * weights.largest
    copies = 2.0 * saved_bytes("fp4") if job.dtype == "fp4" else 0.0

    def bytes_of(each: Floats | float, level: int) -> Floats:
        is_shared = plans.zero >= level
        whole = weights.shared / np.where(is_shared, ranks, 1.0)
        return np.asarray(each * (whole + weights.experts / np.where(is_shared, expert_ranks, 1.0)))

    parts = {
        "weights": bytes_of(WEIGHT, 3) + np.where(plans.zero >= 3, 0.0, copies * weights.layers),
        "gradients": np.where(plans.zero >= SHARED_GRADIENTS, on_gpu, 1.0)
        * bytes_of(gradient * job.trained_share, 2),
        "states": on_gpu * bytes_of(states_bytes(plans) * job.trained_share, 1),
        "activations": kept_chunks(job, plans)
        * np.maximum(0.0, layers - plans.offloaded)
        * tokens
        * layer,
        "workspace": np.maximum(
            has_head * (logits + on_all_ranks),
            tokens * again
            + on_all_ranks
            + np.where((plans.zero >= 3) & (ranks > 1), gathered, 0.0),
        ),
    }
    place = np.argmax(sum(parts.values(), start=np.zeros(())), axis=0)
    ranks, each = plans.ranks(job.pipelined), np.arange(plans.size)
    columns = {n: np.broadcast_to(part, ranks.shape)[place, each] for n, part in parts.items()}
    return RankMemory(rank=ranks[place, each], **columns)


def host_bytes(job: Job, plans: Plans) -> Floats:
    """Return the bytes of host memory for offloaded states and gradients of a node."""
    mine = optimized_weights(job, plans, parameters(job, plans))
    on_node = np.minimum(job.cluster.gpus_per_node, plans.pp * plans.dp * job.tp * job.cp)
    each = (states_bytes(plans) + BYTES["fp32"]) * job.trained_share
    return np.asarray(plans.offloads * each * mine * on_node)


def optimized_weights(job: Job, plans: Plans, held: Parameters) -> Floats:
    """Return the weights whose optimizer states are on a rank with the most weights."""
    is_shared = plans.zero >= 1
    expert_ranks = np.maximum(1.0, plans.shards * job.tp / (job.ep * job.expert_tp))
    shared, experts = most_weights(job, plans, held)
    mine = shared / np.where(is_shared, plans.shards, 1.0)
    return np.asarray(mine + experts / np.where(is_shared, expert_ranks, 1.0))
