"""Operators of a training step: forward pass and gradients.

A product `m x n x k` has two gradients of its size: of its input, `m x k x n`, and of its weights,
`k x n x m`. Fused attention computes its scores once more (Dao et al., FlashAttention, 2022). Where
attention is not fused, products, softmax and dropout are kernels that keep their results
(Korthikanti et al., Reducing activation recomputation, 2022). Under sequence parallelism norms see
a tensor rank's share of the tokens.

The passes are forward, input gradients and weight gradients. Recomputed kernels run with the input
gradients, sums over micro-batches with the weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulators.core.jit import Floats
from simulators.training.job import (
    ACTIVATIONS,
    CORE_ATTN,
    EAGER,
    FLASH_FP8,
    LAYERNORM,
    MLA_UP,
    MLP,
    MOE,
    OPS,
    RING,
    RINGS,
    SHARED_GRADIENTS,
    ULYSSES,
    UNFUSED,
    Job,
    Plans,
)
from simulators.workload.llm.attention import prefill_operators
from simulators.workload.llm.parallelism import Stage
from simulators.workload.llm.step import Shard, prefill_step
from simulators.workload.llm.transformer import head_operators, token_operators
from simulators.workload.operators import (
    Attention,
    Column,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
    Quantisation,
)
from simulators.workload.precision import BYTES

NOTHING = Stage(dense_layers=0, expert_layers=0, has_embedding=False, has_head=False)
PIECES = {
    "embedding": replace(NOTHING, has_embedding=True),
    "dense": replace(NOTHING, dense_layers=1),
    "experts": replace(NOTHING, expert_layers=1),
    "head": replace(NOTHING, has_head=True),
}
"""Pieces of a model, in the order of the columns of `pipeline.py`."""

FORWARD, INPUTS, WEIGHTS, SUMS = "forward", "inputs", "weights", "sums"
"""Passes: forward, gradients of inputs, gradients of weights, sums of weight gradients over
micro-batches by separate kernels."""

RECOMPUTATIONS: Mapping[str, int] = {
    f"recomputation {number}": modules
    for number, modules in enumerate(
        (
            CORE_ATTN,
            LAYERNORM,
            LAYERNORM | MLP,
            ACTIVATIONS | MLP,
            ACTIVATIONS | MOE,
            MLA_UP,
            MLP,
            MOE,
            OPS,
        )
    )
}
"""Passes of recomputation, and the modules with the kernels of a pass."""
RECOMPUTATION_OF = {modules: phase for phase, modules in RECOMPUTATIONS.items()}

KEPT_PRODUCTS = {"qkv_proj": 0.25, "ffn_up": 0.5, "experts_up": 0.5, "shared_expert_up": 0.5}
"""Recomputed share of products under `selective_op`, which keeps every other product: of queries,
keys and values the keys, and one of gate and up. The output projection is recomputed, the down
projection is kept."""

ATTENTION_BACKWARD = 2.5
"""FLOPs of fused attention's backward pass over those of the forward pass."""

ADAPTER = "adapter"
ADAPTED = {"attention": ("qkv_proj", "o_proj"), "all": ("qkv_proj", "o_proj", "ffn_up", "ffn_down")}
"""Name of the products of adapters, and the adapted products by target."""

WIDE = BYTES["fp32"] / BYTES["bf16"]
"""16-bit numbers per fp32 number."""

QUANTIZED_DTYPES = ("fp8", "fp4")
BEFORE_ACTIVATIONS = ("ffn_up", "shared_expert_up")
LAST_OF_BLOCKS = ("o_proj", "ffn_down", "shared_expert_down")
"""Quantized precisions, products before an activation, and products whose results tensor ranks
reduce-scatter."""

OF_EXPERTS = ("experts_up", "experts_down")
EXPERTS_ACTIVATION = "experts_activation"
"""Products of a rank's experts, and the activation between them."""

ACTIVATION = "_activation"
NORMS = ("attention_norm", "ffn_norm")
"""Recomputed kernels: activations have this suffix; norms are recomputed without residual sums."""

IN_MLA_UP = ("latent_norms", "q_up", "kv_up", "rotary_cache_write")
IN_FFN = ("ffn_", "router", "gather_by_expert", "experts_", "weighted_sum", "shared_expert_")
"""Kernels inside MLA's up-projection, and beginnings of names inside a feed-forward block."""

CACHE_WRITE = "cache_write"
"""Copies of keys and values in training without fused kernels (llm-foundry, `unpad_input`)."""

KEPT_NORMS = (*NORMS, "final_norm", "latent_norms")


@dataclass(frozen=True)
class PassKernel:
    """A kernel of one pass of a piece; `is_core` marks kernels of core attention.

    `is_latent` and `has_experts` describe its layer: latent attention, and a mixture of experts.
    """

    kernel: Compute
    phase: str
    is_core: bool = False
    is_latent: bool = False
    has_experts: bool = False


def pass_kernels(job: Job, piece: str, micro_batch: Column) -> list[PassKernel]:
    """Return the kernels of a piece of a model for a micro-batch on a rank."""
    part = PIECES[piece]
    tokens = micro_batch * job.sequence / job.cp
    shard = Shard(job.model, job.layout, part, job.dtype)
    found: list[PassKernel] = []
    for operator in token_operators(shard, tokens):
        if isinstance(operator, GroupedGemm):
            found += _expert_products(operator, job)
        elif operator.repeat and (operator.name != CACHE_WRITE or job.fusion == EAGER):
            if job.fuses_experts and operator.name == EXPERTS_ACTIVATION:
                continue
            found += _with_gradients(_sequence_parallel(operator, job))
            found += _adapter_kernels(operator, job)
            found += _quantized_gradient(operator, job)
            found += _dropout(operator, job)
    predicted = tokens * job.predicted_share
    for operator in head_operators(shard, predicted):
        found += _with_gradients(_sequence_parallel(operator, job))
    if part.has_head:
        found += _loss_kernels(job, predicted)
    if part.has_head and job.mtp_layers:  # a layer joins hidden states and embeddings of tokens
        often = job.mtp_layers / (1.0 + job.mtp_layers)  # of the heads, which run once more
        hidden = job.model.hidden
        join = shard.linear("mtp_projection", tokens, hidden / job.tp, 2.0 * hidden, often)
        found += [*_with_gradients(join), *_quantized_gradient(join, job)]
    if part.layers:
        found += [
            PassKernel(task.kernel, task.phase, is_core=True)
            for task in _attention_kernels(job, shard, micro_batch)
        ]
    if job.lora_rank:  # frozen weights have no gradients
        found = [task for task in found if task.phase != WEIGHTS or task.kernel.name == ADAPTER]
    if job.fusion == EAGER:
        found += [
            task for one in found if one.phase == WEIGHTS for task in _gradient_sums(one.kernel)
        ]
    is_latent, has_experts = job.model.is_latent, part.expert_layers > 0
    return [replace(task, is_latent=is_latent, has_experts=has_experts) for task in found]


def _expert_products(grouped: GroupedGemm, job: Job) -> Iterable[PassKernel]:
    """Yield the products of a rank's experts, each priced as one product with all rows.

    Experts run on several streams or in one grouped kernel, which fills the tiles of all experts
    together. Weight gradients sum over the rows of one expert. Transformer Engine's fused
    feed-forward block of experts quantizes inside its products; otherwise both copies of an input
    are written by a kernel.
    """
    rows, experts = grouped.tokens * grouped.top_k, float(grouped.experts)
    shared: dict[str, Any] = {"name": grouped.name, "dtype": grouped.dtype}
    product = Gemm(m=rows, n=grouped.n, k=grouped.k, repeat=grouped.repeat, **shared)
    yield PassKernel(product, FORWARD)
    yield PassKernel(replace(product, n=grouped.k, k=grouped.n), INPUTS)
    yield PassKernel(
        replace(product, m=experts * grouped.n, n=grouped.k, k=rows / experts), WEIGHTS
    )
    if grouped.dtype in QUANTIZED_DTYPES and not job.fuses_experts:
        for phase, width in ((FORWARD, grouped.k), (INPUTS, grouped.n)):
            yield PassKernel(_quantization("experts_narrowing", rows * width, product), phase)
    if job.model.biases and not job.fuses_experts:
        yield from _with_biases(grouped.name, rows * grouped.n, product)


def _with_biases(name: str, numbers: Column, product: Gemm) -> Iterable[PassKernel]:
    """Yield the unfused kernels of experts with biases (gpt-oss; Megatron-Core, `TEGroupedMLP`).

    Both halves of an up projection are clamped and joined again. The bias of a down projection is
    multiplied by the routing weights in fp32, added, joined and rounded; its gradients are two such
    products and their sums.
    """
    if name == OF_EXPERTS[0]:
        clamp = _pointwise("experts_clamp" + ACTIVATION, numbers, 2.0, 2.0, product)
        yield PassKernel(clamp, FORWARD)
        yield PassKernel(replace(clamp, name="experts_bias", reads=4.0), INPUTS)
        return
    add = _pointwise("experts_bias", numbers, 1.0 + 3.0 * WIDE, 1.0 + 3.0 * WIDE, product)
    yield PassKernel(add, FORWARD)
    yield PassKernel(replace(add, reads=1.0 + 5.0 * WIDE), INPUTS)


def _quantized_gradient(product: Compute, job: Job) -> Iterable[PassKernel]:
    """Yield the kernel that quantizes the gradient of a product's result to 8 or 4 bits.

    Norms, activations and their gradients write quantized numbers themselves; the quantization of
    weights, once per step, is not counted.
    """
    if not isinstance(product, Gemm) or product.dtype not in QUANTIZED_DTYPES:
        return
    if product.name in BEFORE_ACTIVATIONS:
        return
    share = job.norm_ranks if product.name in LAST_OF_BLOCKS else 1
    yield PassKernel(_quantization("narrowing", product.m * product.n / share, product), INPUTS)


def _quantization(name: str, numbers: Column, product: Gemm) -> Elementwise:
    """Return the kernel that quantizes an input of a product.

    The kernel writes a row-wise and a column-wise copy, one for each backward product (Transformer
    Engine).
    """
    return _pointwise(name, numbers, 1.0, 2.0 * BYTES[product.dtype] / BYTES["bf16"], product)


def _dropout(operator: Compute, job: Job) -> Iterable[PassKernel]:
    """Yield the kernels of dropout at a residual sum (models until 2022).

    The sum also writes a mask; the norm after the sum is a second kernel (Megatron-LM).
    """
    if job.attention != UNFUSED or operator.name not in NORMS:
        return
    assert isinstance(operator, Elementwise)
    sums = replace(operator, name="dropout", elements=operator.elements / job.norm_ranks)
    yield PassKernel(replace(sums, reads=1.0, writes=0.5), FORWARD)
    yield PassKernel(replace(sums, reads=1.5, writes=1.0), INPUTS)


def _pointwise(
    name: str, elements: Column, reads: float, writes: float, like: Compute
) -> Elementwise:
    """Return a pointwise kernel over 16-bit numbers that runs as often as another kernel."""
    return Elementwise(
        name=name, elements=elements, reads=reads, writes=writes, dtype="bf16", repeat=like.repeat
    )


def _gradient_sums(product: Compute) -> Iterable[PassKernel]:
    """Yield the kernel that adds a product's 16-bit gradients to an fp32 sum of micro-batches.

    Since 2022 Megatron-LM fuses this sum with the product.
    """
    if isinstance(product, Gemm):
        numbers = product.m * product.n * product.batch
        yield PassKernel(_pointwise("gradient_sum", numbers, 1.0 + WIDE, WIDE, product), SUMS)


def _adapter_kernels(operator: Compute, job: Job) -> list[PassKernel]:
    """Return the two LoRA products of an adapted layer, and the sums with the layer's results.

    One kernel sums the outputs of layer and adapter (Hu et al., LoRA, 2021), another one the
    gradients of their common input, as in PEFT and NeMo.
    """
    is_adapted = job.lora_rank and operator.name in ADAPTED[job.lora_targets]
    if not is_adapted or not isinstance(operator, Gemm):
        return []
    rank = float(job.lora_rank)
    down = replace(operator, name=ADAPTER, n=rank, dtype="bf16", weight_dtype="bf16")
    up = replace(operator, name=ADAPTER, k=rank, dtype="bf16", weight_dtype="bf16")
    m, n, k = operator.m, operator.n, operator.k
    outputs = _pointwise("adapter_sum", m * n * operator.batch, 2.0, 1.0, operator)
    inputs = replace(outputs, elements=m * k * operator.batch)
    sums = [PassKernel(outputs, FORWARD), PassKernel(inputs, INPUTS)]
    return [*_with_gradients(down), *_with_gradients(up), *sums]


def _sequence_parallel(operator: Compute, job: Job) -> Compute:
    """Return an operator with the tokens of a tensor rank under sequence parallelism."""
    if operator.name not in KEPT_NORMS and not isinstance(operator, Embedding):
        return operator
    share = job.norm_ranks
    if isinstance(operator, Elementwise):
        return replace(operator, elements=operator.elements / share)
    if isinstance(operator, Norm | Embedding):
        return replace(operator, rows=operator.rows / share)
    return operator


def _attention_kernels(job: Job, shard: Shard, micro_batch: Column) -> Iterable[PassKernel]:
    """Yield attention between the projections: one kernel, or products with all scores.

    Context ranks run a share of it, at the rate of the whole.
    """
    step = prefill_step(micro_batch, float(job.sequence))
    for operator in prefill_operators(shard, step):
        share = replace(operator, repeat=operator.repeat / job.cp)
        if isinstance(share, Attention) and job.attention == UNFUSED:
            yield from _unfused_attention(share, job)
        elif isinstance(share, Attention):
            if job.attention == FLASH_FP8:
                yield from _quantized_heads(share)
                share = replace(share, dtype="fp8", kv_dtype="fp8")
            backward = replace(share, pairs=ATTENTION_BACKWARD * share.pairs)
            if job.cp > 1 and job.context_exchange in RINGS:
                yield from _ring_attention(share, job, FORWARD, merged=1.0)
                yield from _ring_attention(backward, job, INPUTS, merged=3.0)
            else:
                yield PassKernel(share, FORWARD)
                yield PassKernel(backward, INPUTS)
            if job.cp > 1 and job.context_exchange == ULYSSES:
                yield from (PassKernel(_packed(share), phase) for phase in (FORWARD, INPUTS))
        else:
            yield from _with_gradients(share)


def _quantized_heads(attention: Attention) -> Iterable[PassKernel]:
    """Yield the kernels that quantize queries, keys, values, and the gradient of the output."""
    numbers = attention.query_tokens * attention.head_dim
    writes = BYTES["fp8"] / BYTES["bf16"]
    cast = _pointwise("narrowing", numbers * attention.heads, 1.0, writes, attention)
    width = attention.heads + 2.0 * attention.kv_heads
    yield PassKernel(replace(cast, elements=numbers * width), FORWARD)
    yield PassKernel(cast, INPUTS)


def _packed(attention: Attention) -> Elementwise:
    """Return the kernel that packs queries, keys, values and outputs for an all-to-all.

    The heads of a rank's tokens are not contiguous before the exchange, nor are the tokens of a
    head after it.
    """
    width = 2.0 * (attention.heads + attention.kv_heads) * attention.head_dim
    return _pointwise("packing", 2.0 * attention.query_tokens * width, 1.0, 1.0, attention)


def _ring_attention(
    attention: Attention, job: Job, phase: str, merged: float
) -> Iterable[PassKernel]:
    """Yield ring attention: the kernel of each block of keys, and fp32 sums of partial outputs.

    Blocks are assumed to run at the rate of the whole attention. Under a causal mask a plain ring
    gives some rank a full block at every step after the first; zigzag gives all ranks half a block
    at each step. `merged`: number of tensors of the output's width that are summed per step.
    """
    ranks = float(job.cp)
    uneven = (2.0 * ranks - 1.0) / ranks if job.context_exchange == RING else 1.0
    yield PassKernel(replace(attention, repeat=uneven * attention.repeat), phase)
    numbers = attention.query_tokens / ranks * attention.heads * attention.head_dim
    merge = _pointwise("merge", merged * numbers, 2 * WIDE, WIDE, attention)
    yield PassKernel(replace(merge, repeat=attention.repeat * job.cp * (job.cp - 1)), phase)


def _unfused_attention(attention: Attention, job: Job) -> Iterable[PassKernel]:
    """Yield attention as products, a masked softmax and dropout, each over all scores."""
    length = float(job.sequence)
    batch = attention.requests * attention.heads
    numbers = batch * length * length
    shared: dict[str, Any] = {"dtype": "bf16", "repeat": attention.repeat}
    width, rows = attention.head_dim, numbers / length
    scores = Gemm(name="scores", m=length, n=length, k=width, batch=batch, **shared)
    sums = replace(scores, name="weighted_values", n=width, k=length)
    softmax = Norm(name="masked_softmax", rows=rows, cols=length, kind="softmax", **shared)
    dropout = _pointwise("dropout", numbers, 1.0, 1.5, attention)
    for product in (scores, sums):
        yield PassKernel(product, FORWARD)
        yield PassKernel(product, INPUTS)  # of either factor
        yield PassKernel(product, INPUTS)
    yield PassKernel(softmax, FORWARD)
    yield PassKernel(dropout, FORWARD)
    yield PassKernel(replace(dropout, reads=2.0, writes=1.0), INPUTS)
    yield PassKernel(replace(dropout, reads=1.5, writes=1.0), INPUTS)


def _with_gradients(operator: Compute) -> list[PassKernel]:
    forward = PassKernel(operator, FORWARD)
    if isinstance(operator, Gemm):
        m, n, k = operator.m, operator.n, operator.k
        inputs = replace(operator, n=k, k=n, weight_dtype=operator.dtype)
        weights = replace(operator, m=k, n=n, k=m, weight_dtype=operator.dtype)
        return [forward, PassKernel(inputs, INPUTS), PassKernel(weights, WEIGHTS)]
    if isinstance(operator, Norm):
        moved = Elementwise(
            name=operator.name, elements=operator.rows * operator.cols, reads=2.0, writes=1.0
        )
        return [forward, PassKernel(moved, INPUTS)]
    if isinstance(operator, Embedding):
        moved = Elementwise(name=operator.name, elements=operator.rows * operator.cols, reads=2.0)
        return [forward, PassKernel(moved, WEIGHTS)]
    if isinstance(operator, Elementwise):
        back = replace(operator, reads=operator.reads + operator.writes, writes=operator.reads)
        return [forward, PassKernel(back, INPUTS)]
    if isinstance(operator, Quantisation):
        return [forward]
    return [forward, *[PassKernel(operator, INPUTS)] * 2]  # a scan


def _loss_kernels(job: Job, tokens: Column) -> list[PassKernel]:
    """Return the cross entropy over a rank's part of the logits, in fp32.

    PyTorch's kernels write an fp32 copy of the logits and of their gradients besides.
    """
    logits = tokens * job.model.vocab / job.tp
    more = WIDE if job.cross_entropy == "eager" else 0.0
    forward = Elementwise(name="loss", elements=logits, reads=1.0 + 2 * WIDE, writes=WIDE + more)
    backward = Elementwise(name="loss", elements=logits, reads=WIDE + more, writes=1.0 + more)
    return [PassKernel(forward, FORWARD), PassKernel(backward, INPUTS)]


PHASES = (FORWARD, INPUTS, WEIGHTS, SUMS, *RECOMPUTATIONS)


def merged_passes(sums: dict[str, Floats], plans: Plans, *, is_layer: bool) -> dict[str, Floats]:
    """Return the sums of three passes; recomputation counts with the input gradients."""
    again = {phase: sums.pop(phase) for phase in RECOMPUTATIONS}
    sums[WEIGHTS] += pass_repeats(SUMS, plans) * sums.pop(SUMS)
    if is_layer:
        for phase, seconds in again.items():
            if np.any(seconds):
                sums[INPUTS] += pass_repeats(phase, plans) * seconds
        sums[INPUTS] += plans.again * sums[FORWARD]
    return sums


def pass_repeats(phase: str, plans: Plans, *, is_layer: bool = True) -> Floats:
    """Return the runs of a phase's kernels per micro-batch and piece, for each row.

    Only layers are recomputed. Sharded gradients are reduce-scattered after each micro-batch,
    without a separate sum.
    """
    often = np.ones(plans.size)
    if not is_layer and phase != SUMS:
        return often * (phase not in RECOMPUTATIONS)
    if phase == FORWARD:
        often += plans.again
    elif phase in RECOMPUTATIONS:
        often *= plans.recompute & RECOMPUTATIONS[phase] > 0
    elif phase == SUMS:
        often *= plans.zero < SHARED_GRADIENTS
    return often
