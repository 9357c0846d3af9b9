"""Memory of a rank: weights, gradients, optimizer states, activations saved for the backward pass.

Adam in mixed precision keeps a 16-bit weight, a gradient, and 12 bytes of states; data-parallel
ranks shard the states, then the gradients, then the weights (Rajbhandari et al., ZeRO, 2020). The
backward pass reads the inputs of each operator: activations are counted as by Korthikanti et al.
(Reducing activation recomputation, 2022), for any widths of heads and feed-forward blocks. The
schedule sets the number of micro-batches that a rank keeps; the first rank keeps the most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.training.job import (
    ELEMENTWISE,
    FLASH_FP8,
    FULL,
    LORA_TARGETS,
    NONE,
    SELECTIVE,
    SHARED_GRADIENTS,
    UNFUSED,
    Job,
    Plans,
)
from simulators.training.schedule import DUALPIPE, DUALPIPE_V, GPIPE, INTERLEAVED
from simulators.workload.llm.parallelism import kv_heads_per_gpu
from simulators.workload.precision import BYTES

STATES_BYTES = 12.0
"""Optimizer states of one weight: an fp32 copy and Adam's two moments."""

RESERVED_BYTES = 2.0e9
"""Reserved memory of a rank: CUDA context, NCCL buffers, allocator fragmentation. A choice."""


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes on the fullest rank of each row, by use."""

    weights: Floats
    gradients: Floats
    states: Floats
    activations: Floats
    workspace: Floats
    is_first: NDArray[np.bool_]  # whether the fullest rank is on the first stage, not the last

    @property
    def total(self) -> Floats:
        """Total bytes, reserved memory included."""
        parts = self.weights + self.gradients + self.states + self.activations
        return parts + self.workspace + RESERVED_BYTES

    def where(self, chosen: NDArray[np.bool_]) -> RankMemory:
        """Return a selection of the rows."""
        return RankMemory(**{name: column[chosen] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Number of weights on one rank: a row for the first stage, and one for the last."""

    shared: Floats  # all but routed experts
    experts: Floats  # routed experts, which are distributed over data ranks


def parameters(job: Job, plans: Plans) -> Parameters:
    """Return the number of weights per rank on both ends of each row's pipeline."""
    model, layout = job.model, job.layout
    ffn = model.dense_ffn_parameters / job.tp
    dense_layer = model.attention_parameters / job.tp + 2 * model.norm_parameters
    shared = model.shared_parameters / job.tp
    routed = model.experts * model.expert_parameters / (job.ep * job.expert_tp)
    router = model.hidden * model.experts
    table = model.vocab * model.hidden / job.tp + model.learned_positions * model.hidden
    assert layout.tp == job.tp
    dense_layers = model.layers - model.expert_layers
    stage = np.ceil(model.layers / plans.pp)
    after_first = np.maximum(0.0, dense_layers - (model.layers - stage))
    dense = np.stack([np.minimum(dense_layers, stage), after_first])
    whole = _has_both_ends(plans)
    untied = 0.0 if model.tied_embeddings else 1.0
    head = model.vocab * model.hidden / job.tp + model.norm_parameters
    ends = ((table, head), (head, table))
    held = stage * dense_layer + dense * ffn + (stage - dense) * (shared + router)
    held = held + [own + np.where(whole, untied * other, 0.0) for own, other in ends]
    experts = (stage - dense) * routed
    twice = plans.models > 1  # either end of the pipeline has both stages
    return Parameters(
        shared=np.where(twice, held.sum(axis=0), held),
        experts=np.where(twice, experts.sum(axis=0), experts),
    )


def _has_both_ends(plans: Plans) -> NDArray[np.bool_]:
    return np.asarray((plans.pp == 1) | (plans.schedule == DUALPIPE_V), np.bool_)


def layer_activation_bytes(job: Job, plans: Plans) -> Floats:
    """Return the activation bytes per rank, layer and micro-batch that await the backward pass."""
    model = job.model
    tokens = plans.micro_batch * job.sequence / job.cp
    between = 8.0 * model.hidden / job.norm_ranks  # inputs of norms and of products
    if model.learned_positions:
        between += 2.0 * model.hidden / job.norm_ranks  # masks of two dropouts
    heads = model.heads / job.tp
    widths = (2.0 * heads + 2.0 * kv_heads_per_gpu(model, job.layout)) * model.head_dim
    if model.is_latent:
        widths = heads * (
            2.0 * (model.qk_nope_head_dim + model.qk_rope_head_dim) + 2.0 * model.v_head_dim
        )
    wide = 3.0 if model.gated_ffn else 2.0
    if model.experts:
        activated = (model.expert_ffn * model.top_k + model.shared_width) / job.tp
        ffn = wide * activated + 2.0 * model.top_k * model.hidden / job.tp
    else:
        activated = model.ffn / job.tp
        ffn = wide * activated
    given = 4.0 * model.hidden / job.norm_ranks + 2.0 * activated  # by norms and activations
    if job.lora_rank and job.lora_targets != LORA_TARGETS[1]:  # a frozen product saves no input
        between -= 2.0 * model.hidden / job.norm_ranks
        ffn *= (wide - 1.0) / wide
        given = 2.0 * model.hidden / job.norm_ranks
    wide_attention = BYTES["fp8" if job.attention == FLASH_FP8 else "bf16"]
    kept = tokens * (between + wide_attention * widths + 2.0 * ffn)
    kept = kept - np.where(plans.recompute == ELEMENTWISE, tokens * given, 0.0)
    scores = 5.0 * heads * job.sequence * tokens if job.attention == UNFUSED else 0.0 * tokens
    scores = np.where(plans.recompute == SELECTIVE, 0.0, scores)
    input_only = tokens * 2.0 * model.hidden / job.norm_ranks
    return np.asarray(plans.again * input_only + (1.0 - plans.again) * (kept + scores))


def kept_chunks(plans: Plans) -> Floats:
    """Return the largest number of micro-batches whose activations the first rank holds."""
    pp, m, chunks = plans.pp, plans.micro_batches, plans.chunks
    warm_up = np.minimum(2 * (pp - 1) + (chunks - 1) * pp + 1, m * chunks)
    kept = np.where(plans.schedule == INTERLEAVED, warm_up / chunks, np.minimum(pp, m))
    kept = np.where(plans.schedule == DUALPIPE, pp + 1, kept)  # of one stage each
    kept = np.where(plans.schedule == DUALPIPE_V, pp + 0.5, kept)
    return np.where(plans.schedule == GPIPE, m, kept).astype(np.float64)


def rank_memory(job: Job, plans: Plans) -> RankMemory:
    """Return the memory of the fullest rank of each row."""
    model = job.model
    weights = parameters(job, plans)
    ranks = plans.shards
    expert_ranks = np.maximum(1.0, ranks * job.tp / (job.ep * job.expert_tp))
    layer = layer_activation_bytes(job, plans)
    stage = np.ceil(model.layers / plans.pp)
    tokens = plans.micro_batch * job.sequence / job.cp
    predicted = tokens * job.predicted_share
    logits = predicted * model.vocab / job.tp * (BYTES["bf16"] + BYTES["fp32"])
    again = _recomputed_bytes(job, plans, layer)
    on_gpu = 1.0 - plans.offloads
    kept = np.stack([kept_chunks(plans), np.minimum(plans.chunks, plans.micro_batches)])
    has_loss = _has_both_ends(plans) | (plans.models > 1)

    def bytes_of(each: float, level: int) -> Floats:
        is_shared = plans.zero >= level
        whole = weights.shared / np.where(is_shared, ranks, 1.0)
        return np.asarray(each * (whole + weights.experts / np.where(is_shared, expert_ranks, 1.0)))

    gradients = bytes_of(BYTES["fp32"] * job.trained_share, 2)
    both = {
        "weights": bytes_of(BYTES["bf16"], 3),
        "gradients": np.where(plans.zero >= SHARED_GRADIENTS, on_gpu, 1.0) * gradients,
        "states": on_gpu * bytes_of(STATES_BYTES * job.trained_share, 1),
        "activations": kept * stage * layer,
        "workspace": again + np.stack([np.where(has_loss, logits, 0.0), logits]),
    }
    first, last = sum(both.values(), start=np.zeros(()))
    columns = {name: np.where(first >= last, *column) for name, column in both.items()}
    return RankMemory(is_first=np.asarray(first >= last), **columns)


def host_bytes(job: Job, plans: Plans) -> Floats:
    """Return the bytes of host memory for offloaded states and gradients of a node."""
    mine = optimized_weights(job, plans, parameters(job, plans))
    on_node = np.minimum(job.cluster.gpus_per_node, plans.pp * plans.dp * job.tp * job.cp)
    each = (STATES_BYTES + BYTES["fp32"]) * job.trained_share
    return np.asarray(plans.offloads * each * mine * on_node)


def optimized_weights(job: Job, plans: Plans, held: Parameters) -> Floats:
    """Return the number of weights of a first-stage rank's share of the optimizer states."""
    is_shared = plans.zero >= 1
    expert_ranks = np.maximum(1.0, plans.shards * job.tp / (job.ep * job.expert_tp))
    mine = held.shared[0] / np.where(is_shared, plans.shards, 1.0)
    return np.asarray(mine + held.experts[0] / np.where(is_shared, expert_ranks, 1.0))


def _recomputed_bytes(job: Job, plans: Plans, layer: Floats) -> Floats:
    """Return the activation bytes of one layer that recomputation restores at a time."""
    without = replace(
        plans, recompute=np.full_like(plans.recompute, NONE), again=np.zeros(plans.size)
    )
    whole = layer_activation_bytes(job, without)
    part = np.where(plans.recompute == ELEMENTWISE, whole - layer, 0.0)
    return np.where(plans.recompute == FULL, whole, part)
