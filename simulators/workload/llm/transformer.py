"""The operators of one iteration of a transformer, their sizes a few sums over its requests.

Linear layers, norms and everything pointwise see only the number of tokens; attention of the
prefills and of the decodes see sums of their own; the LM head sees the rows it must answer. The
lists below have exactly these dependences, so that each can be tabulated on its own.

Whatever stands between two matrix products runs as one kernel, as compilers and hand-written
kernels of serving engines do: residual with norm, rotary embedding with the cache write,
activation. Tensor parallelism cuts heads and widths and sums twice per layer (Shoeybi et al.,
Megatron-LM, 2019).
"""

from __future__ import annotations

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.attention import decode_operators, prefill_operators
from simulators.workload.llm.feed_forward import feed_forward
from simulators.workload.llm.indexer import index_projections
from simulators.workload.llm.parallelism import (
    Parallelism,
    attending_layers,
    kv_heads_per_gpu,
    stage_of,
)
from simulators.workload.llm.routing import GATHERED
from simulators.workload.llm.shard import Shard
from simulators.workload.llm.step import Step
from simulators.workload.operators import (
    Collective,
    Column,
    Compute,
    Embedding,
    ExpertExchange,
    Operator,
    Quantisation,
)
from simulators.workload.precision import BYTES, QUANTISED

SCALE_BYTES = 4.0 / 128.0
"""Of a number of 8 bits on its way to experts: 128 of them share a scale of 32 bits (DeepEP)."""


SQUARES_BYTES = 2 * 4.0
"""Of a token: the mean squares of its queries and of its keys, in 32 bits."""


def forward(
    model: LanguageModel,
    cut: Parallelism,
    step: Step,
    dtype: str,
    kv_dtype: str,
    stage: int = 0,
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
    shard = Shard(model, cut, stage_of(model, cut, stage), dtype, kv_dtype)
    return (
        *token_operators(shard, step.tokens),
        *head_operators(shard, step.logits_rows),
        *prefill_operators(shard, step),
        *decode_operators(shard, step),
        *collectives(shard, step.tokens),
        *logits_collectives(shard, step.logits_rows),
    )


def token_operators(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return what depends on the number of tokens alone: projections, norms, feed-forward."""
    hidden, width = shard.model.hidden, shard.how.activations
    embedding = Embedding(name="embedding", rows=tokens, cols=hidden, dtype=width)
    return (
        *((embedding,) if shard.part.has_embedding else ()),
        *_projections(shard, tokens),
        *feed_forward(shard, tokens),
        # The residual sums, each fused with the norm after it: two tensors in, two out.
        *(
            shard.pointwise(name, tokens * shard.model.hidden, shard.part.layers, 2.0, 2.0)
            for name in ("attention_norm", "ffn_norm")
        ),
    )


def head_operators(shard: Shard, rows: Column) -> tuple[Compute, ...]:
    """Return the last norm and the LM head, on the stage that has them."""
    if not shard.part.has_head:
        return ()
    model = shard.model
    return (
        shard.norm("final_norm", rows, model.hidden, kind=model.norm),
        shard.wide("lm_head", rows, model.vocab / shard.cut.tp, model.hidden),
    )


def collectives(shard: Shard, tokens: Column) -> tuple[Collective, ...]:
    """Return the messages that grow with tokens: sums over tensor ranks, hand-over to a stage."""
    cut, part = shard.cut, shard.part
    size = tokens * shard.model.hidden * shard.how.activation_bytes
    messages: list[Collective] = []
    apart = cut.attention_dp > 1
    if apart and part.expert_layers:
        messages += _expert_exchange(shard, tokens)
    if cut.tp > 1:
        # The embedding is cut by vocabulary.
        sums = 2 * part.layers + part.has_embedding - apart * part.expert_layers
        messages.append(_collective("tensor_parallel_sum", "all_reduce", size, cut.tp, sums))
    if cut.tp > 1 and shard.model.whole_qk_norm:
        squares = tokens * SQUARES_BYTES
        messages.append(_collective("qk_norm_sum", "all_reduce", squares, cut.tp, part.layers))
    if not part.has_head and cut.pp > 1:
        # Each tensor rank sends its slice; the receiving ranks gather over their own links.
        messages.append(_collective("next_stage", "send_recv", size / cut.tp, 2))
    return tuple(messages)


def _collective(name: str, kind: str, size: Column, ranks: int, repeat: float = 1) -> Collective:
    """Return a collective of `ranks` GPUs over a buffer of `size` bytes each."""
    return Collective(name=name, kind=kind, size_bytes=size, ranks=ranks, repeat=repeat)


def _expert_exchange(shard: Shard, tokens: Column) -> list[Collective]:
    """Return the messages that take tokens to their experts, and sums back.

    As engines do on one node by default, every rank gathers the tokens of all groups, in the
    precision of the experts' products, and the ranks' sums are scattered, as wide as activations.
    By DeepEP's kernels each rank of a group sends its part of the group's tokens to where their
    experts are, and the ranks of a group gather what comes back.
    """
    cut, how = shard.cut, shard.how
    narrow = BYTES[how.expert_compute or how.compute]
    if cut.routing.backend != GATHERED:
        return _sent_to_experts(shard, tokens, narrow)
    numbers, layers = tokens * cut.attention_dp * shard.model.hidden, shard.part.expert_layers
    given, summed = numbers * narrow, numbers * how.activation_bytes
    return [
        _collective("experts_dispatch", "all_gather", given, cut.width, layers),
        _collective("experts_combine", "reduce_scatter", summed, cut.width, layers),
    ]


def _sent_to_experts(shard: Shard, tokens: Column, narrow: float) -> list[Collective]:
    """Return the messages by which tokens reach their experts' GPUs alone, and sums come back."""
    model, cut, wide = shard.model, shard.cut, shard.how.activation_bytes
    mine, scaled = tokens / cut.tp, narrow + (SCALE_BYTES if narrow == 1.0 else 0.0)
    messages: list[Collective] = [
        ExpertExchange(
            name=f"experts_{name}",
            kind=cut.routing.backend,
            size_bytes=mine * model.hidden * width,
            ranks=cut.width,
            repeat=shard.part.expert_layers,
            tokens=mine,
            experts=model.experts,
            top_k=model.top_k,
            groups=model.expert_groups,
            chosen=model.groups_per_token,
        )
        for name, width in (("dispatch", scaled), ("combine", wide))
    ]
    if cut.tp > 1:
        size, layers = tokens * model.hidden * wide, shard.part.expert_layers
        messages.append(_collective("experts_gather", "all_gather", size, cut.tp, layers))
    return messages


def logits_collectives(shard: Shard, rows: Column) -> tuple[Collective, ...]:
    """Return the gathering of logits over tensor ranks, on the stage that has the LM head."""
    if not shard.part.has_head or shard.cut.tp == 1:
        return ()
    size = rows * shard.model.vocab * shard.how.activation_bytes
    return (_collective("logits", "all_gather", size, shard.cut.tp),)


def _projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the linear layers around attention and what is fused between them."""
    model, part = shard.model, shard.part
    if model.is_latent:
        return _latent_projections(shard, tokens)
    heads, kv_heads = shard.heads, kv_heads_per_gpu(model, shard.cut)
    layers = attending_layers(model, part) if model.has_states else part.layers
    qkv = (heads + 2 * kv_heads) * model.head_dim
    rotated = 0.0 if model.learned_positions else heads * model.head_dim
    cached = 2 * kv_heads * model.head_dim
    return (
        shard.linear("qkv_proj", tokens, qkv, model.hidden, layers),
        *_query_key_norm(shard, tokens, heads + kv_heads, layers),
        shard.pointwise(
            "rotary_cache_write" if rotated else "cache_write", tokens * (rotated + cached), layers
        ),
        *_quantised("attention", shard, tokens, heads * model.head_dim, layers),
        shard.linear("o_proj", tokens, model.hidden, heads * model.head_dim, layers),
        *_state_projections(shard, tokens, part.layers - layers),
    )


def _query_key_norm(
    shard: Shard, tokens: Column, heads: float, layers: float
) -> tuple[Compute, ...]:
    """Return the norm of queries and keys, if the model has one: a row a head, or of all heads."""
    model = shard.model
    if not model.qk_norm:
        return ()
    rows, cols = (2.0, heads / 2.0) if model.whole_qk_norm else (heads, 1.0)
    return (shard.norm("qk_norm", tokens * rows, cols * model.head_dim, layers),)


def _state_projections(shard: Shard, tokens: Column, layers: float) -> tuple[Compute, ...]:
    """Return what surrounds a layer's state: queries, keys, values and gate; norm and output."""
    if not layers:
        return ()
    model = shard.model
    keys, values = model.state_keys / shard.cut.tp, model.state_values / shard.cut.tp
    return (
        shard.linear("state_in_proj", tokens, 2 * keys + 2 * values, model.hidden, layers),
        shard.pointwise("state_gated_norm", tokens * values, layers, reads=2.0),
        shard.linear("state_out_proj", tokens, model.hidden, values, layers),
    )


def _latent_projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the projections of latent attention; the down-projections run whole on each rank."""
    model, heads, layers = shard.model, shard.heads, shard.part.layers
    queries = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    rank = model.q_lora_rank
    return (
        shard.linear("latent_down", tokens, rank + latent, model.hidden, layers),
        shard.norm("latent_norms", tokens, rank + model.kv_lora_rank, layers),
        shard.linear("q_up", tokens, queries, rank or model.hidden, layers),
        shard.pointwise(
            "rotary_cache_write", tokens * (heads * model.qk_rope_head_dim + latent), layers
        ),
        *(index_projections(shard, tokens) if model.index_top_k else ()),
        *_quantised("attention", shard, tokens, heads * model.v_head_dim, layers),
        shard.linear("o_proj", tokens, model.hidden, heads * model.v_head_dim, layers),
    )


def _quantised(
    name: str, shard: Shard, tokens: Column, width: float, layers: float
) -> tuple[Compute, ...]:
    """Return the kernel that quantises the input of a low-precision product, or nothing.

    Norms and activations write narrow numbers themselves; attention writes wide ones.
    """
    how = shard.how
    if how.compute not in QUANTISED:
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
