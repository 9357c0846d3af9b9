"""Operators of one iteration of a transformer, sized by sums over the requests.

Linear layers, norms and pointwise kernels depend only on the number of tokens; attention of
prefills and of decodes on separate sums; the LM head on the rows of logits. The lists below have
exactly these dependences, so that each can be tabulated separately.

All operators between two matrix products run as one kernel, as in compilers and hand-written
kernels of serving engines: residual with norm, rotary embedding with the cache write, activation.
Tensor parallelism splits heads and widths and sums twice per layer (Shoeybi et al., Megatron-LM,
2019), so each GPU holds a slice of all experts; expert parallelism distributes whole experts. In
feed-forward blocks `tokens` belong to one group of ranks; the experts see the tokens of all groups,
and all ranks wait for the rank with most.

A LoRA adapter of rank `r` adds `x A B` to a layer's output, `A` of in x r and `B` of r x out (Hu et
al., LoRA, 2021): one product shrinks and one expands. Requests of a batch may have different
adapters. Either the tokens of an adapter are multiplied together, so that each adapter is read once
(Punica's SGMV, vLLM), or every token reads its adapter (BGMV, as S-LoRA decodes).

Nucleus sampling (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020) sorts
the logits of the whole vocabulary on every tensor rank, in passes over fp32 numbers, counted from
vLLM 0.11's sampler (vllm/v1/sample, in PyTorch): logits to fp32 and over the temperature; sort;
softmax and running sum; mask beyond the share, and scatter back; softmax, and a race of
exponentials. PyTorch sorts fewer than 128 rows together by a radix sort of 32 bits in four passes,
with indices of 8 bytes, then by row; more rows one by one, in six passes that read the keys twice
(aten/native/cuda/SortStable.cu, and CUB's device radix sorts). Greedy sampling reads logits once,
which is counted with the LM head.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from simulators.catalog.model import MXFP4, LanguageModel
from simulators.workload.llm.attention import (
    decode_operators,
    index_heads_per_gpu,
    index_projections,
    latent_layers,
    prefill_operators,
)
from simulators.workload.llm.parallelism import (
    GATHERED,
    MOST_FEW,
    Parallelism,
    attentions,
    kv_heads_per_gpu,
    skewed_share,
    stage_of,
    state_layers,
)
from simulators.workload.llm.step import Shard, Step
from simulators.workload.operators import (
    Collective,
    Column,
    Compute,
    Embedding,
    ExpertExchange,
    Gemm,
    GroupedGemm,
    Operator,
    Quantisation,
    StreamMixing,
)
from simulators.workload.precision import BYTES, QUANTISED, QUANTISED_IN_CALL

TARGETS = ATTENTION, ALL = "attention", "all"
"""Layers with adapters: projections around attention, or those of dense layers too."""


def adapter_numbers(model: LanguageModel, targets: str) -> int:
    """Return the numbers of one adapter of rank 1, over all layers.

    >>> from simulators.catalog.model import load_model
    >>> round(16 * adapter_numbers(load_model("llama2_7b"), "all") / 1e6)
    40
    """
    widths = (2 * model.heads + 2 * model.kv_heads) * model.head_dim + 4 * model.hidden
    numbers = model.layers * widths
    if targets == ALL:
        products = 3 if model.gated_ffn else 2
        dense = model.layers - model.expert_layers
        numbers += dense * products * (model.hidden + model.ffn)
    return numbers


def adapter_products(
    shard: Shard, rank: float, targets: str, tokens: Column, groups: Column, *, fused: bool = True
) -> tuple[Gemm, ...]:
    """Return the LoRA products of a step on a GPU: two per adapted layer.

    All adapters have the same rank; each group of tokens is multiplied by one copy of an adapter.
    `fused`: layers with the same input, such as queries, keys and values, share one launch.
    """
    model, part, tp = shard.model, shard.part, shard.layout.tp
    head, ffn, hidden = model.head_dim, model.ffn / tp, float(model.hidden)
    queries, keys = shard.heads * head, kv_heads_per_gpu(model, shard.layout) * head
    beside: list[tuple[list[float], float, float]] = [
        ([queries, keys, keys], hidden, part.layers),
        ([hidden], queries, part.layers),
    ]
    if targets == ALL and part.dense_layers:
        ups = 2 if model.gated_ffn else 1
        beside += [([ffn] * ups, hidden, part.dense_layers), ([hidden], ffn, part.dense_layers)]
    rows, dtype = tokens / groups, shard.how.activations
    launches = [
        launch
        for outs, narrow, layers in beside
        for launch in (
            [(len(outs), sum(outs), narrow, layers)]
            if fused
            else [(1, out, narrow, layers) for out in outs]
        )
    ]
    return tuple(
        Gemm(name=name, m=rows, n=n, k=k, batch=groups, dtype=dtype, repeat=layers)
        for slices, wide, narrow, layers in launches
        for name, n, k in (
            ("adapter_shrink", slices * rank, narrow),
            ("adapter_expand", wide, rank),
        )
    )


FP32 = 4.0
READ = 2 + 4 + 8 + 4 + 4 + 5 + 12 + 8 + 8 + 4
WRITTEN = 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4 + 4 + 4
"""Bytes read and written per logit by the passes of the module's docstring, without the sort."""

TOGETHER_ROWS = 128
SORTED_TOGETHER = 8 + (4 + 4 * (12 + 12)) + (8 + 8 + 8) + (8 + 4 + 4 + 8)
SORTED_EACH = 8 + 6 * (4 + 12 + 12)
"""Bytes per logit of the sort: indices, sort by key, sort by row, scatter; and row by row."""


def nucleus_operators(shard: Shard, rows: Column) -> tuple[Compute, ...]:
    """Return the passes over `rows` rows of logits, on the stage with the LM head."""
    if not shard.part.has_head:
        return ()
    logits = rows * float(shard.model.vocab)
    sort = np.where(np.asarray(rows) < TOGETHER_ROWS, SORTED_TOGETHER, SORTED_EACH)
    return (
        shard.pointwise("nucleus_sort", logits * sort / (2.0 * FP32), 1, dtype="fp32"),
        shard.pointwise("nucleus_draw", logits, 1, READ / FP32, WRITTEN / FP32, "fp32"),
    )


SEEN_BY_EXPERTS = ("gather_by_expert", "experts_up", "experts_activation", "experts_down")
"""Operators on the tokens of all groups of ranks."""


def feed_forward(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the feed-forward blocks of a stage, dense layers first."""
    model, layout, part = shard.model, shard.layout, shard.part
    dense = _block("ffn", shard, model.ffn / layout.tp, tokens, part.dense_layers)
    if not part.expert_layers:
        return dense
    mixture = _mixture(shard, tokens)
    if model.shared_experts:
        width = model.shared_width / layout.tp
        mixture += _block("shared_expert", shard, width, tokens, part.expert_layers)
    return (dense if part.dense_layers else ()) + mixture


def _block(
    name: str, shard: Shard, width: float, tokens: Column, repeat: int
) -> tuple[Compute, ...]:
    """Return up projection (with the gate, if any), activation and down projection."""
    hidden, up = shard.model.hidden, 2 if shard.model.gated_ffn else 1
    return (
        shard.linear(f"{name}_up", tokens, up * width, hidden, repeat),
        shard.pointwise(f"{name}_activation", tokens * width, repeat, reads=float(up)),
        shard.linear(f"{name}_down", tokens, hidden, width, repeat),
    )


def _mixture(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    model, layout = shard.model, shard.layout
    repeat, hidden, latent = shard.part.expert_layers, model.expert_width, model.expert_hidden
    width, up = model.expert_ffn / layout.expert_tp, 2 if model.gated_ffn else 1
    everywhere = tokens * layout.attention_dp
    everywhere = everywhere * busiest_share(model, layout.ep, everywhere)
    everywhere = everywhere * skewed_share(
        model.experts,
        model.top_k,
        layout.ep,
        layout.routing.skew,
        redundant=layout.routing.redundant,
        counted=layout.routing.counted,
    )
    routed = everywhere * model.top_k / layout.ep  # rows of the busiest GPU's experts
    into_latent: tuple[Compute, ...] = ()
    out_of_latent: tuple[Compute, ...] = ()
    if latent:
        into_latent = (shard.linear("experts_latent_down", tokens, latent, model.hidden, repeat),)
        out_of_latent = (shard.linear("experts_latent_up", tokens, model.hidden, latent, repeat),)
    return (
        shard.wide("router", tokens, model.experts, model.hidden, repeat),
        *into_latent,
        shard.pointwise("gather_by_expert", routed * hidden, repeat),
        _experts("experts_up", shard, everywhere, up * width, hidden),
        shard.pointwise("experts_activation", routed * width, repeat, float(up)),
        _experts("experts_down", shard, everywhere, hidden, width),
        shard.pointwise("weighted_sum", tokens * hidden, repeat, float(model.top_k)),
        *out_of_latent,
    )


def _experts(name: str, shard: Shard, tokens: Column, n: float, k: float) -> GroupedGemm:
    model, how, ep = shard.model, shard.how, shard.layout.ep
    backend = shard.layout.routing.backend
    stored = how.expert_weights or how.weights
    if stored == "int4" and model.published_experts == MXFP4:
        stored = "fp4"  # equal bits, but kernels of a block format
    return GroupedGemm(
        name=name,
        tokens=tokens,
        n=n,
        k=k,
        experts=(model.experts + shard.layout.routing.redundant) // ep,
        top_k=model.top_k / ep,
        dtype=how.expert_compute or how.compute,
        weight_dtype=stored,
        width=model.expert_ffn / shard.layout.expert_tp,
        ranks=float(ep),
        received=tokens * (1.0 - (1.0 - 1.0 / ep) ** model.top_k) if backend in MOST_FEW else None,
        masked_tokens=ep * MOST_FEW.get(backend, 0.0),
        repeat=shard.part.expert_layers,
    )


def busiest_share(model: LanguageModel, parts: int, tokens: Column) -> Column:
    """Return the rows of the busiest part of the experts over those of the mean part.

    Tokens choose `k` of `E` experts at random, so the rows of a part have a variance of
    `T k (1 - k/E) / parts`; the expected largest of several normal numbers is Blom's ("Statistical
    estimates and transformed beta-variables", 1958). Skewed routing adds `skewed_share`.

    >>> from simulators.catalog.model import load_model
    >>> [round(float(busiest_share(load_model("mixtral_8x7b"), 4, t)), 2) for t in (16.0, 1024.0)]
    [1.32, 1.04]
    """
    if parts == 1:
        return 1.0
    most = NormalDist().inv_cdf((parts - 0.375) / (parts + 0.25))
    rows = np.maximum(tokens, 1.0) * model.top_k / parts
    above = most * np.sqrt((1.0 - model.top_k / model.experts) / rows)
    return np.minimum(1.0 + above, float(parts))


SCALE_BYTES = 4.0 / 128.0
"""Bytes of scales per 8-bit number sent to experts: 128 numbers share a 32-bit scale (DeepEP)."""


SQUARES_BYTES = 2 * 4.0
"""Bytes per token of the mean squares of its queries and keys, in 32 bits."""


def forward(
    model: LanguageModel, layout: Parallelism, step: Step, dtype: str, kv_dtype: str, stage: int = 0
) -> tuple[Operator, ...]:
    """Return the operators of an iteration on each GPU of a pipeline stage.

    `repeat` counts layers; the order is that of the lists, not of execution.

    >>> from simulators.catalog.model import load_model
    >>> from simulators.workload.llm.step import decode_step
    >>> step = decode_step(8.0, 1024.0)
    >>> for o in forward(load_model("gpt2"), Parallelism(), step, "fp16", "fp16")[:4]:
    ...     print(o.name, o.repeat)
    embedding 1
    qkv_proj 12
    cache_write 12
    o_proj 12
    """
    shard = Shard(model, layout, stage_of(model, layout, stage), dtype, kv_dtype)
    return (
        *token_operators(shard, step.tokens),
        *head_operators(shard, step.logits_rows),
        *prefill_operators(shard, step),
        *decode_operators(shard, step),
        *collectives(shard, step.tokens),
        *logits_collectives(shard, step.logits_rows),
    )


def token_operators(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the operators that depend only on the number of tokens."""
    hidden, width, part = shard.model.hidden, shard.how.activations, shard.part
    streams = shard.model.residual_streams
    moved = 1.0 if streams > 1 else 2.0
    embedding = Embedding(name="embedding", rows=tokens, cols=hidden, dtype=width)
    return (
        *((embedding,) if shard.part.has_embedding else ()),
        *attention_projections(shard, tokens),
        *feed_forward(shard, tokens),
        *(_mixing(shard, tokens) if streams > 1 else ()),
        *_earlier_blocks(shard, tokens),
        # The residual sums, each fused with the norm after it: two tensors in, two out. With
        # several streams the sums are part of their mixing.
        *(
            shard.pointwise(name, tokens * hidden, layers, moved, moved)
            for name, layers in (
                ("attention_norm", part.layers),
                ("ffn_norm", part.layers - part.bare_layers),
            )
        ),
    )


def _mixing(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the kernels before and behind every block that mix the residual streams."""
    layers = 2 * shard.part.layers - shard.part.bare_layers
    shared: dict[str, Any] = {"tokens": tokens, "hidden": float(shard.model.hidden)}
    shared |= {"streams": float(shard.model.residual_streams), "dtype": shard.how.activations}
    return tuple(
        StreamMixing(name=f"stream_mixing_{phase}", phase=phase, repeat=layers, **shared)
        for phase in ("pre", "post")
    )


def _earlier_blocks(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the attention of every block over the sums of earlier groups of layers.

    Attention residuals (Kimi Team, "Attention residuals", 2026): a block reads the sum of each
    earlier group of `residual_layers` layers and of its own group, half of all on average.
    """
    model, part = shard.model, shard.part
    if not model.residual_layers:
        return ()
    read = model.layers / model.residual_layers / 2.0 + 1.0
    blocks = 2 * part.layers - part.bare_layers
    return (shard.pointwise("residual_attention", tokens * model.hidden, blocks, reads=read),)


def head_operators(shard: Shard, rows: Column) -> tuple[Compute, ...]:
    """Return the last norm and the LM head, on the last stage."""
    if not shard.part.has_head:
        return ()
    model = shard.model
    return (
        shard.norm("final_norm", rows, model.hidden, kind=model.norm),
        shard.wide("lm_head", rows, model.vocab / shard.layout.tp, model.hidden),
    )


def collectives(shard: Shard, tokens: Column) -> tuple[Collective, ...]:
    """Return the collectives sized by tokens: tensor-parallel sums, experts, stage sends."""
    layout, part = shard.layout, shard.part
    size = tokens * shard.model.hidden * shard.how.activation_bytes
    messages: list[Collective] = []
    apart = layout.attention_dp > 1
    if apart and part.expert_layers:
        messages += _expert_exchange(shard, tokens)
    if layout.tp > 1:
        # The embedding is split by vocabulary.
        sums = 2 * part.layers - part.bare_layers + part.has_embedding
        sums -= apart * part.expert_layers
        messages.append(_collective("tensor_parallel_sum", "all_reduce", size, layout.tp, sums))
    if layout.tp > 1 and shard.model.whole_qk_norm:
        squares = tokens * SQUARES_BYTES
        messages.append(_collective("qk_norm_sum", "all_reduce", squares, layout.tp, part.layers))
    if not part.has_head and layout.pp > 1:
        # Each tensor rank sends its slice; the receiving ranks gather over their own links.
        messages.append(_collective("next_stage", "send_recv", size / layout.tp, 2))
    return tuple(messages)


def _collective(name: str, kind: str, size: Column, ranks: int, repeat: float = 1) -> Collective:
    return Collective(name=name, kind=kind, size_bytes=size, ranks=ranks, repeat=repeat)


def _expert_exchange(shard: Shard, tokens: Column) -> list[Collective]:
    """Return the messages that dispatch tokens to experts and combine the results.

    By default, as engines do on one node, every rank gathers the tokens of all groups, in the
    precision of the experts' products, and the sums are reduce-scattered in the activations'
    precision. With DeepEP's kernels each rank of a group sends its part of the group's tokens to
    the experts, and the ranks of a group gather the results.
    """
    layout, how = shard.layout, shard.how
    narrow = BYTES[how.expert_compute or how.compute]
    if layout.routing.backend != GATHERED:
        return _sent_to_experts(shard, tokens, narrow)
    numbers, layers = tokens * layout.attention_dp, shard.part.expert_layers
    numbers = numbers * shard.model.expert_width
    given, summed = numbers * narrow, numbers * how.activation_bytes
    return [
        _collective("experts_dispatch", "all_gather", given, layout.width, layers),
        _collective("experts_combine", "reduce_scatter", summed, layout.width, layers),
    ]


def _sent_to_experts(shard: Shard, tokens: Column, narrow: float) -> list[Collective]:
    """Return DeepEP's dispatch and combine, and the gather within a group of ranks."""
    model, layout, wide = shard.model, shard.layout, shard.how.activation_bytes
    mine, scaled = tokens / layout.tp, narrow + (SCALE_BYTES if narrow == 1.0 else 0.0)
    messages: list[Collective] = [
        ExpertExchange(
            name=f"experts_{name}",
            kind=layout.routing.backend,
            size_bytes=mine * model.expert_width * width,
            ranks=layout.width,
            repeat=shard.part.expert_layers,
            tokens=mine,
            experts=model.experts,
            top_k=model.top_k,
            groups=model.expert_groups,
            chosen=model.groups_per_token,
        )
        for name, width in (("dispatch", scaled), ("combine", wide))
    ]
    if layout.tp > 1:
        size, layers = tokens * model.expert_width * wide, shard.part.expert_layers
        messages.append(_collective("experts_gather", "all_gather", size, layout.tp, layers))
    return messages


def logits_collectives(shard: Shard, rows: Column) -> tuple[Collective, ...]:
    """Return the all-gather of logits over tensor ranks, on the stage with the LM head."""
    if not shard.part.has_head or shard.layout.tp == 1:
        return ()
    size = rows * shard.model.vocab * shard.how.activation_bytes
    return (_collective("logits", "all_gather", size, shard.layout.tp),)


def attention_projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the linear layers around attention, with their fused pointwise kernels."""
    model, part = shard.model, shard.part
    if model.is_latent:
        return _latent_projections(shard, tokens)
    found: list[Compute] = []
    for layers, sizes in attentions(model, part):
        found += _head_projections(replace(shard, model=sizes), tokens, layers)
    return (*found, *_state_projections(shard, tokens))


def _head_projections(shard: Shard, tokens: Column, layers: float) -> tuple[Compute, ...]:
    """Return the linear layers around attention of layers with equal heads."""
    model, heads, kv_heads = shard.model, shard.heads, kv_heads_per_gpu(shard.model, shard.layout)
    queries, out = heads * model.head_dim, heads * model.value_dim
    gate, values = out * model.attention_gate, kv_heads * model.value_dim
    cached = kv_heads * model.head_dim + values
    rotated = 0.0 if model.learned_positions else queries
    qkv = queries + gate + cached - values * model.values_are_keys
    indexed = 0.0
    if model.index_top_k:  # projected, normed and rotated with the others
        indexed = (index_heads_per_gpu(shard) + 1.0) * model.index_head_dim * model.index_share
    return (
        shard.linear("qkv_proj", tokens, qkv + indexed, model.hidden, layers),
        *_query_key_norm(shard, tokens, heads + kv_heads, layers),
        shard.pointwise(
            "rotary_cache_write" if rotated else "cache_write",
            tokens * (rotated + cached + indexed),
            layers,
        ),
        *((shard.pointwise("attention_gate", tokens * gate, layers, 2.0),) if gate else ()),
        *_quantised("attention", shard, tokens, out, layers),
        shard.linear("o_proj", tokens, model.hidden, out, layers),
    )


def _query_key_norm(
    shard: Shard, tokens: Column, heads: float, layers: float
) -> tuple[Compute, ...]:
    model = shard.model
    if not model.qk_norm:
        return ()
    rows, cols = (2.0, heads / 2.0) if model.whole_qk_norm else (heads, 1.0)
    return (shard.norm("qk_norm", tokens * rows, cols * model.head_dim, layers),)


def _state_projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the projections and the gated norm of layers with a recurrent state.

    Narrow projections of gates, of which each rank has a copy, come in two products.
    """
    model, layers = shard.model, state_layers(shard.model, shard.part)
    if not layers:
        return ()
    keys, values = model.state_keys / shard.layout.tp, model.state_values / shard.layout.tp
    rank, is_kda = model.state_gate_rank, model.state_rule == "kda"
    gate, decay = 0.0 if rank else values, model.state_head_dim * is_kda
    down, up = rank + decay, values * (rank > 0) + keys * is_kda
    return (
        shard.linear("state_in_proj", tokens, 2 * keys + values + gate, model.hidden, layers),
        *((shard.linear("state_gates_down", tokens, down, model.hidden, layers),) if down else ()),
        *((shard.linear("state_gates_up", tokens, up, rank or decay, layers),) if down else ()),
        shard.pointwise("state_gated_norm", tokens * values, layers, reads=2.0),
        shard.linear("state_out_proj", tokens, model.hidden, values, layers),
    )


def _latent_projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the projections of latent attention; down-projections are replicated on each rank."""
    model, heads, layers = shard.model, shard.heads, latent_layers(shard)
    queries = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    rank, out = model.q_lora_rank, model.output_groups * model.output_rank / shard.layout.tp
    compressors = model.compressor_parameters / model.hidden
    gate = heads * model.v_head_dim * model.attention_gate
    gates = (
        shard.linear("attention_gate_proj", tokens, gate, model.hidden, layers),
        shard.pointwise("attention_gate", tokens * gate, layers, reads=2.0),
    )
    return (
        shard.linear("latent_down", tokens, rank + latent, model.hidden, layers),
        shard.norm("latent_norms", tokens, rank + model.kv_lora_rank, layers),
        shard.linear("q_up", tokens, queries, rank or model.hidden, layers),
        shard.pointwise(
            "rotary_cache_write", tokens * (heads * model.qk_rope_head_dim + latent), layers
        ),
        *(index_projections(shard, tokens) if model.index_top_k else ()),
        *(
            (shard.wide("compressor", tokens, compressors, model.hidden, layers),)
            * bool(compressors)
        ),
        *(gates if gate else ()),
        *_quantised("attention", shard, tokens, heads * model.v_head_dim, layers),
        *((_grouped_output(shard, tokens),) if out else ()),
        shard.linear("o_proj", tokens, model.hidden, out or heads * model.v_head_dim, layers),
        *_state_projections(shard, tokens),
    )


def _grouped_output(shard: Shard, tokens: Column) -> Gemm:
    """Return the product of each group of heads with its own matrix of low rank."""
    model, groups = shard.model, shard.model.output_groups
    k = model.heads * model.v_head_dim / groups
    down = shard.linear("o_down", tokens, model.output_rank, k, shard.part.layers)
    return replace(down, batch=groups / shard.layout.tp)


def _quantised(
    name: str, shard: Shard, tokens: Column, width: float, layers: float
) -> tuple[Compute, ...]:
    """Return the kernel that quantizes the input of a low-precision product, if needed.

    Norms and activations write quantized numbers themselves; attention writes 16-bit numbers.
    """
    how = shard.how
    if how.compute not in QUANTISED or how.weights in QUANTISED_IN_CALL:
        return ()
    return (
        Quantisation(
            name=f"{name}_quantise",
            rows=tokens,
            cols=width,
            to=how.compute,
            dtype=how.activations,
            repeat=layers,
        ),
    )
