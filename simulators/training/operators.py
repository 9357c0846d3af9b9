"""Operators of a training step: forward pass and gradients.

A product `m x n x k` has two gradients of its size: of its input, `m x k x n`, and of its weights,
`k x n x m`. Fused attention computes its scores once more (Dao et al., FlashAttention, 2022). Where
attention is not fused, products, softmax and dropout are kernels that keep their results
(Korthikanti et al., Reducing activation recomputation, 2022). Under sequence parallelism norms see
a tensor rank's share of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from simulators.training.job import EAGER, FLASH_FP8, RING, RINGS, ULYSSES, UNFUSED, Job
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
"""What a model is made of; the order is that of the columns of `schedule.py`."""

FORWARD, INPUTS, WEIGHTS, AGAIN, SUMS = "forward", "inputs", "weights", "again", "sums"
AGAIN_ELEMENTWISE = "again, elementwise"
"""Passes: forward, gradients of inputs, of weights, the part of forward that selective
recomputation runs again, which is attention without its projections, and kernels that add a
micro-batch's gradients of weights to those before, where the products do not do that themselves;
the norms and activations of forward that elementwise recomputation runs again."""

ATTENTION_BACKWARD = 2.5
"""Products of fused attention's backward pass over those of its forward."""

ADAPTER = "adapter"
ADAPTED = {
    "attention": ("qkv_proj", "o_proj"),
    "all": ("qkv_proj", "o_proj", "ffn_up", "ffn_down"),
}
"""What products of adapters are called, and beside which products they are trained."""

WIDE = BYTES["fp32"] / BYTES["bf16"]
"""Numbers of 16 bits that one of fp32 takes."""

NARROW = ("fp8", "fp4")
BEFORE_ACTIVATIONS = ("ffn_up", "experts_up", "shared_expert_up")
LAST_OF_BLOCKS = ("o_proj", "ffn_down", "shared_expert_down")
"""Precisions to which operands are narrowed, products before an activation, and those whose results
tensor ranks sum and share out."""

ACTIVATION = "_activation"
NORMS = ("attention_norm", "ffn_norm")
"""What elementwise recomputation runs again: what ends so, and norms without residual sums."""

CACHE_WRITE = "cache_write"
"""Of keys and values, after no rotary embedding: in training their copies, where kernels are not
fused (llm-foundry, `unpad_input`)."""

KEPT_NORMS = (*NORMS, "final_norm", "latent_norms")


@dataclass(frozen=True)
class PassKernel:
    """A kernel of one pass of a piece; `is_core` marks kernels of core attention."""

    kernel: Compute
    phase: str
    is_core: bool = False


def tasks(job: Job, piece: str, micro_batch: Column) -> list[PassKernel]:
    """Return the kernels of a piece of a model for a micro-batch on a rank."""
    part = PIECES[piece]
    tokens = micro_batch * job.sequence / job.cp
    shard = Shard(job.model, job.cut, part, job.dtype)
    found: list[PassKernel] = []
    for operator in token_operators(shard, tokens):
        if operator.repeat and (operator.name != CACHE_WRITE or job.fusion == EAGER):
            found += _with_gradients(_shared_out(operator, job))
            found += _adapter(operator, job)
            found += _narrowed(operator, job)
            found += _dropout(operator, job)
    predicted = tokens * job.predicted_share
    for operator in head_operators(shard, predicted):
        found += _with_gradients(_shared_out(operator, job))
    if part.has_head:
        found += _loss(job, predicted)
    if part.layers:
        found += [
            PassKernel(task.kernel, task.phase, is_core=True)
            for task in _attention(job, shard, micro_batch)
        ]
    if job.lora_rank:  # frozen weights have no gradients
        found = [task for task in found if task.phase != WEIGHTS or task.kernel.name == ADAPTER]
    if job.fusion == EAGER:
        found += [task for one in found if one.phase == WEIGHTS for task in _summed(one.kernel)]
    return found


def _narrowed(product: Compute, job: Job) -> Iterable[PassKernel]:
    """Return the kernel that narrows the gradient of a product's result to 8 or 4 bits.

    It writes rows and columns apart, one for either backward product, as matrix units read one of
    them alone (Transformer Engine). Norms, activations and their gradients write narrow numbers
    themselves; weights are narrowed once a step, which is left out.
    """
    if not isinstance(product, Gemm | GroupedGemm) or product.dtype not in NARROW:
        return
    if product.name in BEFORE_ACTIVATIONS:
        return
    rows = product.m if isinstance(product, Gemm) else product.tokens
    share = job.norm_ranks if product.name in LAST_OF_BLOCKS else 1
    writes = 2.0 * BYTES[product.dtype] / BYTES["bf16"]
    yield PassKernel(
        _pointwise("narrowing", rows * product.n / share, 1.0, writes, product), INPUTS
    )


def _dropout(operator: Compute, job: Job) -> Iterable[PassKernel]:
    """Return the kernels of dropout at a residual sum (models until 2022).

    The sum, which writes a mask besides, and the norm after it are two kernels (Megatron-LM).
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


def _summed(product: Compute) -> Iterable[PassKernel]:
    """Return the kernel that adds a product's 16-bit gradients to an fp32 sum of micro-batches.

    Since 2022 Megatron-LM's products do so themselves.
    """
    if isinstance(product, Gemm):
        numbers = product.m * product.n * product.batch
    elif isinstance(product, GroupedGemm):
        numbers = product.experts * product.n * product.k
    else:
        return
    yield PassKernel(_pointwise("gradient_sum", numbers, 1.0 + WIDE, WIDE, product), SUMS)


def _adapter(operator: Compute, job: Job) -> list[PassKernel]:
    """Return the two LoRA products of an adapted layer, and the sums with the layer's results.

    Outputs of both are summed (Hu et al., LoRA, 2021), and so are the gradients of what both read,
    each by a kernel, as in PEFT and NeMo.
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


def _shared_out(operator: Compute, job: Job) -> Compute:
    """Return an operator with the tokens of a tensor rank under sequence parallelism."""
    if operator.name not in KEPT_NORMS and not isinstance(operator, Embedding):
        return operator
    share = job.norm_ranks
    if isinstance(operator, Elementwise):
        return replace(operator, elements=operator.elements / share)
    if isinstance(operator, Norm | Embedding):
        return replace(operator, rows=operator.rows / share)
    return operator


def _attention(job: Job, shard: Shard, micro_batch: Column) -> Iterable[PassKernel]:
    """Return attention between the projections: one kernel, or products with all scores.

    Context ranks run a share of it, at the pace of the whole.
    """
    step = prefill_step(micro_batch, float(job.sequence))
    for operator in prefill_operators(shard, step):
        share = replace(operator, repeat=operator.repeat / job.cp)
        if isinstance(share, Attention) and job.attention == UNFUSED:
            yield from _unfused(share, job)
        elif isinstance(share, Attention):
            if job.attention == FLASH_FP8:
                yield from _narrowed_heads(share)
                share = replace(share, dtype="fp8", kv_dtype="fp8")
            backward = replace(share, pairs=ATTENTION_BACKWARD * share.pairs)
            if job.cp > 1 and job.context_exchange in RINGS:
                yield from _in_ring(share, job, FORWARD, merged=1.0)
                yield from _in_ring(backward, job, INPUTS, merged=3.0)
            else:
                yield PassKernel(share, FORWARD)
                yield PassKernel(backward, INPUTS)
            if job.cp > 1 and job.context_exchange == ULYSSES:
                yield from (PassKernel(_packed(share), phase) for phase in (FORWARD, INPUTS))
        else:
            yield from _with_gradients(share)


def _narrowed_heads(attention: Attention) -> Iterable[PassKernel]:
    """Return the kernels that narrow queries, keys and values, and the gradient of the output."""
    numbers = attention.query_tokens * attention.head_dim
    writes = BYTES["fp8"] / BYTES["bf16"]
    cast = _pointwise("narrowing", numbers * attention.heads, 1.0, writes, attention)
    width = attention.heads + 2.0 * attention.kv_heads
    yield PassKernel(replace(cast, elements=numbers * width), FORWARD)
    yield PassKernel(cast, INPUTS)


def _packed(attention: Attention) -> Elementwise:
    """Return what packs queries, keys, values and outputs by rank before a swap, and unpacks them.

    Heads of a rank's tokens lie apart from one another, and so do its tokens of a head after it.
    """
    width = 2.0 * (attention.heads + attention.kv_heads) * attention.head_dim
    return _pointwise("packing", 2.0 * attention.query_tokens * width, 1.0, 1.0, attention)


def _in_ring(attention: Attention, job: Job, phase: str, merged: float) -> Iterable[PassKernel]:
    """Return ring attention: the kernel of each block of keys, and fp32 sums of partial outputs.

    Blocks are taken to run at the pace of the whole. Of a causal mask a plain ring leaves some
    rank a whole block at every step but the first, of which half is masked; a zigzag gives all
    ranks half a block at each.
    The attention is all of it, as often as a rank's even share; after each step so many tensors as
    wide as the output are summed.
    """
    ranks = float(job.cp)
    uneven = (2.0 * ranks - 1.0) / ranks if job.context_exchange == RING else 1.0
    yield PassKernel(replace(attention, repeat=uneven * attention.repeat), phase)
    numbers = attention.query_tokens / ranks * attention.heads * attention.head_dim
    merge = _pointwise("merge", merged * numbers, 2 * WIDE, WIDE, attention)
    yield PassKernel(replace(merge, repeat=attention.repeat * job.cp * (job.cp - 1)), phase)


def _unfused(attention: Attention, job: Job) -> Iterable[PassKernel]:
    """Return attention as products, a masked softmax and dropout, each over all scores."""
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
    """Return an operator of a forward pass and its gradients."""
    forward = PassKernel(operator, FORWARD)
    if isinstance(operator, Gemm):
        m, n, k = operator.m, operator.n, operator.k
        inputs = replace(operator, n=k, k=n, weight_dtype=operator.dtype)
        weights = replace(operator, m=k, n=n, k=m, weight_dtype=operator.dtype)
        return [forward, PassKernel(inputs, INPUTS), PassKernel(weights, WEIGHTS)]
    if isinstance(operator, GroupedGemm):
        inputs_of = replace(operator, n=operator.k, k=operator.n)
        return [forward, PassKernel(inputs_of, INPUTS), PassKernel(operator, WEIGHTS)]
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
    return [
        forward,
        PassKernel(operator, INPUTS),
        PassKernel(operator, INPUTS),
    ]  # a scan


def _loss(job: Job, tokens: Column) -> list[PassKernel]:
    """Return the cross entropy of a rank's part of the logits: fp32 numbers, read and written."""
    logits = tokens * job.model.vocab / job.tp
    forward = Elementwise(name="loss", elements=logits, reads=1.0 + 2 * WIDE, writes=WIDE)
    backward = Elementwise(name="loss", elements=logits, reads=WIDE, writes=1.0)
    return [PassKernel(forward, FORWARD), PassKernel(backward, INPUTS)]
