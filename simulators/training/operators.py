"""Operators of a training step: forward pass and gradients.

A product `m x n x k` has two gradients of its size: of its input, `m x k x n`, and of its weights,
`k x n x m`. Fused attention computes its scores once more (Dao et al., FlashAttention, 2022). Where
attention is not fused, products, softmax and dropout are kernels that keep their results
(Korthikanti et al., Reducing activation recomputation, 2022). Under sequence parallelism norms see
a tensor rank's share of the tokens.

Kernels of a kind are priced together: their sizes are stacked, one row per kernel, one column per
micro-batch size.

The passes are forward, input gradients and weight gradients. Recomputed kernels run with the input
gradients, sums over micro-batches with the weight gradients. A host that launches kernels one by
one runs ahead of its GPU until launching a pass takes longer than its kernels; MLPerf Training v4.1
and later submissions avoid that by CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulators.composition.operator_prices import compute_rows
from simulators.composition.replica import Replica
from simulators.core.columns import LEVELS
from simulators.core.jit import Floats, Ints
from simulators.kernels.price import flops
from simulators.training.communication import LAYERS, Messages
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
    Constants,
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
    positions_alike,
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

AGAIN: Mapping[str, int] = {
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
PHASE_OF = {modules: phase for phase, modules in AGAIN.items()}

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

NARROW = ("fp8", "fp4")
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


def tasks(job: Job, piece: str, micro_batch: Column) -> list[PassKernel]:
    """Return the kernels of a piece of a model for a micro-batch on a rank."""
    part = PIECES[piece]
    tokens = micro_batch * job.sequence / job.cp
    shard = Shard(job.model, job.layout, part, job.dtype)
    found: list[PassKernel] = []
    for operator in token_operators(shard, tokens):
        if isinstance(operator, GroupedGemm):
            found += _of_experts(operator, job)
        elif operator.repeat and (operator.name != CACHE_WRITE or job.fusion == EAGER):
            if job.fuses_experts and operator.name == EXPERTS_ACTIVATION:
                continue
            found += _with_gradients(_shared_out(operator, job))
            found += _adapter(operator, job)
            found += _narrowed(operator, job)
            found += _dropout(operator, job)
    predicted = tokens * job.predicted_share
    for operator in head_operators(shard, predicted):
        found += _with_gradients(_shared_out(operator, job))
    if part.has_head:
        found += _loss(job, predicted)
    if part.has_head and job.mtp_layers:  # a layer joins hidden states and embeddings of tokens
        often = job.mtp_layers / (1.0 + job.mtp_layers)  # of the heads, which run once more
        hidden = job.model.hidden
        join = shard.linear("mtp_projection", tokens, hidden / job.tp, 2.0 * hidden, often)
        found += [*_with_gradients(join), *_narrowed(join, job)]
    if part.layers:
        found += [
            PassKernel(task.kernel, task.phase, is_core=True)
            for task in _attention(job, shard, micro_batch)
        ]
    if job.lora_rank:  # frozen weights have no gradients
        found = [task for task in found if task.phase != WEIGHTS or task.kernel.name == ADAPTER]
    if job.fusion == EAGER:
        found += [
            task for one in found if one.phase == WEIGHTS for task in _gradient_sums(one.kernel)
        ]
    is_latent, has_experts = job.model.is_latent, part.expert_layers > 0
    return [replace(task, is_latent=is_latent, has_experts=has_experts) for task in found]


def _of_experts(grouped: GroupedGemm, job: Job) -> Iterable[PassKernel]:
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
    if grouped.dtype in NARROW and not job.fuses_experts:
        for phase, width in ((FORWARD, grouped.k), (INPUTS, grouped.n)):
            yield PassKernel(_narrowing("experts_narrowing", rows * width, product), phase)
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


def _narrowed(product: Compute, job: Job) -> Iterable[PassKernel]:
    """Yield the kernel that quantizes the gradient of a product's result to 8 or 4 bits.

    Norms, activations and their gradients write quantized numbers themselves; the quantization of
    weights, once per step, is not counted.
    """
    if not isinstance(product, Gemm) or product.dtype not in NARROW:
        return
    if product.name in BEFORE_ACTIVATIONS:
        return
    share = job.norm_ranks if product.name in LAST_OF_BLOCKS else 1
    yield PassKernel(_narrowing("narrowing", product.m * product.n / share, product), INPUTS)


def _narrowing(name: str, numbers: Column, product: Gemm) -> Elementwise:
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


def _adapter(operator: Compute, job: Job) -> list[PassKernel]:
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
    """Yield attention between the projections: one kernel, or products with all scores.

    Context ranks run a share of it, at the rate of the whole.
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


def _in_ring(attention: Attention, job: Job, phase: str, merged: float) -> Iterable[PassKernel]:
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


def _unfused(attention: Attention, job: Job) -> Iterable[PassKernel]:
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


def _loss(job: Job, tokens: Column) -> list[PassKernel]:
    """Return the cross entropy over a rank's part of the logits, in fp32.

    PyTorch's kernels write an fp32 copy of the logits and of their gradients besides.
    """
    logits = tokens * job.model.vocab / job.tp
    more = WIDE if job.cross_entropy == "eager" else 0.0
    forward = Elementwise(name="loss", elements=logits, reads=1.0 + 2 * WIDE, writes=WIDE + more)
    backward = Elementwise(name="loss", elements=logits, reads=WIDE + more, writes=1.0 + more)
    return [PassKernel(forward, FORWARD), PassKernel(backward, INPUTS)]


PHASES = (FORWARD, INPUTS, WEIGHTS, SUMS, *AGAIN)


def in_passes(sums: dict[str, Floats], plans: Plans, *, is_layer: bool) -> dict[str, Floats]:
    """Return the sums of three passes; recomputation counts with the input gradients."""
    again = {phase: sums.pop(phase) for phase in AGAIN}
    sums[WEIGHTS] += runs(SUMS, plans) * sums.pop(SUMS)
    if is_layer:
        for phase, seconds in again.items():
            if np.any(seconds):
                sums[INPUTS] += runs(phase, plans) * seconds
        sums[INPUTS] += plans.again * sums[FORWARD]
    return sums


def runs(phase: str, plans: Plans, *, is_layer: bool = True) -> Floats:
    """Return the runs of a phase's kernels per micro-batch and piece, for each row.

    Only layers are recomputed. Sharded gradients are reduce-scattered after each micro-batch,
    without a separate sum.
    """
    often = np.ones(plans.size)
    if not is_layer and phase != SUMS:
        return often * (phase not in AGAIN)
    if phase == FORWARD:
        often += plans.again
    elif phase in AGAIN:
        often *= plans.recompute & AGAIN[phase] > 0
    elif phase == SUMS:
        often *= plans.zero < SHARED_GRADIENTS
    return often


def is_launched(piece: str, job: Job) -> bool:
    """Return whether the host launches the kernels of a piece separately, without CUDA graphs."""
    return piece in LAYERS and not (job.cuda_graphs or job.layer_graphs)


def launch_waits_s(
    launches: Mapping[str, float], sent: Messages, shown: Floats, constants: Constants, plans: Plans
) -> Floats:
    """Return the launch waits of a layer's forward and backward pass in seconds.

    `shown` has the seconds of a layer's forward pass, input and weight gradients, by row.
    """
    kernels = {phase: np.full(plans.size, launches.get(phase, 0.0)) for phase in PHASES}
    often = in_passes(kernels, plans, is_layer=True)
    kernels_of = np.stack([often[FORWARD], often[INPUTS] + often[WEIGHTS]], axis=1)
    forward, backward = sent.launches
    messages = np.stack([np.full(plans.size, forward), backward + plans.again * forward], axis=1)
    taken = np.stack([shown[:, 0], shown[:, 1] + shown[:, 2]], axis=1)
    waits_s = np.maximum(0.0, constants.launch_s * (kernels_of + messages) - taken)
    return np.asarray(waits_s, np.float64)


PRODUCTS = ("bf16", "fp16", "fp8", "fp4")
ATTENTION, SCORES, STREAMS = "attention", "scores", "streams"
"""Kinds of kernels, each with its pace in training: products by precision, fused attention, scores
of unfused attention, and pointwise kernels."""

SIZES: Mapping[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    Attention: ("requests", "query_tokens", "pairs", "kv_tokens"),
    Elementwise: ("elements",),
    Norm: ("rows",),
    Embedding: ("rows",),
}
"""Fields that may differ between kernels priced in one call; for other types, all columns."""

POSITIONS = np.arange(len(LEVELS))[:, None]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of a model: by pass and kind of kernel, columns over micro-batch sizes."""

    seconds: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    joules: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)  # kernels, by pass
    flops: Floats  # of the forward pass, on one rank
    by_level: Floats  # seconds of all passes by evidence level


def pieces(job: Job, micro_batches: Floats) -> dict[str, Piece]:
    """Return the pieces that the model has, priced for a column of micro-batch sizes."""
    model = job.model
    names = [
        name
        for name in PIECES
        if (name != "experts" or model.expert_layers)
        and (name != "dense" or model.expert_layers < model.layers)
    ]
    asked = {name: tasks(job, name, micro_batches) for name in names}
    every = [task for one in asked.values() for task in one]
    seconds, joules, levels = _priced(job, [task.kernel for task in every], micro_batches.size)
    found, start = {}, 0
    for name, mine in asked.items():
        where = range(start, start + len(mine))
        start += len(mine)
        found[name] = Piece(
            seconds=_summed(mine, [seconds[i] for i in where]),
            joules=_summed(mine, [joules[i] for i in where]),
            launches=_launches(job, mine),
            flops=np.asarray(
                sum(
                    (flops(t.kernel) * t.kernel.repeat for t in mine if t.phase == FORWARD),
                    start=np.zeros(micro_batches.size),
                )
            ),
            by_level=sum(
                (seconds[i] * (levels[i] == POSITIONS) for i in where),
                start=np.zeros((len(LEVELS), micro_batches.size)),
            ),
        )
    return found


def kind_of(task: PassKernel) -> str:
    """Return the kind of a kernel, which sets its pace."""
    kernel = task.kernel
    if isinstance(kernel, Gemm):
        return SCORES if kernel.name in ("scores", "weighted_values") else kernel.dtype
    if isinstance(kernel, Attention):
        return ATTENTION
    if isinstance(kernel, Norm | Elementwise):
        return SCORES if task.is_core else STREAMS
    return STREAMS


def _summed(mine: Sequence[PassKernel], columns: Sequence[Floats]) -> dict[tuple[str, str], Floats]:
    sums: dict[tuple[str, str], Floats] = {}
    for task, column in zip(mine, columns, strict=True):
        for phase, share in _phases(task):
            key = (phase, kind_of(task))
            sums[key] = sums.get(key, 0.0) + share * column
    return sums


def _launches(job: Job, mine: Sequence[PassKernel]) -> dict[str, float]:
    """Return the number of kernel launches of each pass; a ring launches one per rank's keys."""
    rings = job.cp if job.context_exchange in RINGS else 1
    found: dict[str, float] = {}
    for task in mine:
        for phase, share in _phases(task):
            often = rings if task.is_core else 1
            found[phase] = found.get(phase, 0.0) + share * often
    return found


def _phases(task: PassKernel) -> Iterator[tuple[str, float]]:
    """Yield the passes of a kernel, each with the share of the kernel's work."""
    yield task.phase, 1.0
    if task.phase != FORWARD:
        return
    name, modules = task.kernel.name, modules_with(task)
    share = 0.5 if name in NORMS else 1.0  # one tensor in and one out, not two with the sum
    if modules:
        yield PHASE_OF[modules], share
    if not task.is_core and not name.endswith("_down"):
        yield PHASE_OF[OPS], KEPT_PRODUCTS.get(name, share)


def modules_with(task: PassKernel) -> int:
    """Return the bits of the modules that contain a kernel of a forward pass; 0: none."""
    name, is_of_experts = task.kernel.name, task.has_experts
    if name in IN_MLA_UP and task.is_latent:
        return MLA_UP
    if task.is_core:
        return CORE_ATTN
    if name in NORMS:  # the norm of a mixture is outside the module, as several kernels read it
        return LAYERNORM if name == NORMS[0] or is_of_experts else LAYERNORM | MLP
    if not name.startswith(IN_FFN):
        return 0
    block = MOE if is_of_experts else MLP
    return ACTIVATIONS | block if name.endswith(ACTIVATION) else block


def _priced(
    job: Job, kernels: Sequence[Compute], columns: int
) -> tuple[list[Floats], list[Floats], list[Ints]]:
    """Return seconds, joules and evidence level of each kernel.

    A product in fp8 or fp4 takes at most as long as in bf16.
    """
    replica = Replica(model=job.model, gpu=job.gpu, cluster=job.cluster, layout=job.layout)
    seconds: list[Floats] = [np.zeros(columns)] * len(kernels)
    joules, levels = list(seconds), [np.zeros(columns, np.int64)] * len(kernels)
    for where in positions_alike(kernels, _varying):
        stacked = _stacked([kernels[i] for i in where], columns)
        for row in compute_rows((stacked,), replica, "tokens"):  # empty if fused elsewhere
            shape = np.shape(row.seconds)
            columns_of = (np.broadcast_to(x, shape) for x in (row.seconds, row.joules, row.level))
            for i, second, joule, level in zip(where, *columns_of, strict=True):
                often = kernels[i].repeat  # a fraction if only some layers have the kernel
                if kernels[i].name in OF_EXPERTS:
                    often *= job.busiest  # ranks wait for the rank with the most tokens
                seconds[i], joules[i], levels[i] = often * second, often * joule, level
    narrow = {i: k for i, k in enumerate(kernels) if isinstance(k, Gemm) and k.dtype in NARROW}
    if narrow:
        wide = [replace(k, dtype="bf16", weight_dtype="bf16") for k in narrow.values()]
        for i, second in zip(narrow, _priced(job, wide, columns)[0], strict=True):
            seconds[i] = np.minimum(seconds[i], second)
    return seconds, joules, levels


def _varying(kernel: Compute) -> set[str]:
    """Return the fields that may differ within one price call; streams depend on bytes alone."""
    names = {"reads", "writes"} if isinstance(kernel, Elementwise) else set()
    return names.union(_sizes(kernel), ("name", "repeat"))


def _sizes(kernel: Compute) -> tuple[str, ...]:
    known = SIZES.get(type(kernel), ())
    return known or tuple(n for n, value in vars(kernel).items() if isinstance(value, np.ndarray))


def _stacked(kernels: Sequence[Compute], columns: int) -> Compute:
    """Return one operator with a row for each kernel; streams are stacked by bytes moved."""
    first = kernels[0]
    if isinstance(first, Elementwise):
        moved = np.empty((len(kernels), columns))
        for row, k in enumerate(kernels):
            assert isinstance(k, Elementwise)
            moved[row] = k.elements * (k.reads + k.writes) / 2.0
        return replace(first, name="stream", elements=moved, reads=1.0, writes=1.0, repeat=1)
    sizes: dict[str, Any] = {name: np.empty((len(kernels), columns)) for name in _sizes(first)}
    for name, stacked in sizes.items():
        for row, k in enumerate(kernels):
            stacked[row] = getattr(k, name)
    return replace(first, repeat=1, **sizes)
