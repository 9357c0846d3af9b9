"""A transformer's iteration is a list of operators, whose sizes are a few sums over its requests.

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
    Stage,
    attending_layers,
    kv_heads_per_gpu,
    stage_of,
)
from simulators.workload.llm.step import Step
from simulators.workload.operators import (
    BYTES,
    Collective,
    Column,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    Norm,
    Operator,
)
from simulators.workload.precision import Precision, precision


def forward(
    model: LanguageModel,
    cut: Parallelism,
    step: Step,
    dtype: str,
    kv_dtype: str,
    stage: int = 0,
) -> tuple[Operator, ...]:
    """Return the operators that each GPU of one pipeline stage runs in one iteration.

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
    part = stage_of(model, cut, stage)
    return (
        *token_operators(model, cut, part, step.tokens, dtype),
        *head_operators(model, cut, part, step.logits_rows, dtype),
        *prefill_operators(model, cut, part, step, dtype, kv_dtype),
        *decode_operators(model, cut, part, step, dtype, kv_dtype),
        *collectives(model, cut, part, step.tokens, dtype),
        *logits_collectives(model, cut, part, step.logits_rows, dtype),
    )


def token_operators(
    model: LanguageModel, cut: Parallelism, part: Stage, tokens: Column, dtype: str
) -> tuple[Compute, ...]:
    """Return what depends on the number of tokens alone: projections, norms, feed-forward."""
    how = precision(dtype)
    embedding: tuple[Compute, ...] = ()
    if part.has_embedding:
        embedding = (
            Embedding(name="embedding", rows=tokens, cols=model.hidden, dtype=how.activations),
        )
    return (
        *embedding,
        *_projections(model, cut, part, tokens, how),
        *feed_forward(model, cut, part, tokens, how),
        _residual_norm("attention_norm", model, tokens, how, part.layers),
        _residual_norm("ffn_norm", model, tokens, how, part.layers),
    )


def head_operators(
    model: LanguageModel, cut: Parallelism, part: Stage, rows: Column, dtype: str
) -> tuple[Compute, ...]:
    """Return the last norm and the LM head, on the stage that has them."""
    if not part.has_head:
        return ()
    width = precision(dtype).activations
    return (
        Norm(name="final_norm", rows=rows, cols=model.hidden, kind=model.norm, dtype=width),
        Gemm(name="lm_head", m=rows, n=model.vocab / cut.tp, k=model.hidden, dtype=width),
    )


def collectives(
    model: LanguageModel, cut: Parallelism, part: Stage, tokens: Column, dtype: str
) -> tuple[Collective, ...]:
    """Return the messages that grow with tokens: sums over tensor ranks, hand-over to a stage."""
    size = tokens * model.hidden * precision(dtype).activation_bytes
    messages: list[Collective] = []
    apart = cut.attention_dp > 1
    if apart and part.expert_layers:
        messages += _expert_exchange(model, cut, part, tokens, precision(dtype))
    if cut.tp > 1:
        # The embedding is cut by vocabulary.
        sums = 2 * part.layers + part.has_embedding - apart * part.expert_layers
        messages.append(
            Collective(
                name="tensor_parallel_sum",
                kind="all_reduce",
                size_bytes=size,
                ranks=cut.tp,
                repeat=sums,
            )
        )
    if not part.has_head:
        # Each tensor rank sends its slice; the receiving ranks gather over their own links.
        messages.append(
            Collective(name="next_stage", kind="send_recv", size_bytes=size / cut.tp, ranks=2)
        )
    return tuple(messages)


def _expert_exchange(
    model: LanguageModel, cut: Parallelism, part: Stage, tokens: Column, how: Precision
) -> list[Collective]:
    """Return the messages that take tokens to their experts, and sums back.

    A rank's share of its group's tokens goes to each part of the ranks that holds one of their
    experts, in the precision of the experts' products; what comes back is as wide as activations.
    """
    parts = max(cut.ep, 1)
    visited = cut.expert_tp * parts * (1.0 - (1.0 - 1.0 / parts) ** model.top_k)
    numbers = tokens / cut.tp * model.hidden * visited
    narrow = BYTES[how.expert_compute or how.compute]
    return [
        Collective(
            name=f"experts_{name}",
            kind="all_to_all",
            size_bytes=numbers * width,
            ranks=cut.width,
            repeat=part.expert_layers,
        )
        for name, width in (("dispatch", narrow), ("combine", how.activation_bytes))
    ]


def logits_collectives(
    model: LanguageModel, cut: Parallelism, part: Stage, rows: Column, dtype: str
) -> tuple[Collective, ...]:
    """Return the gathering of logits over tensor ranks, on the stage that has the LM head."""
    if not part.has_head or cut.tp == 1:
        return ()
    size = rows * model.vocab * precision(dtype).activation_bytes
    return (Collective(name="logits", kind="all_gather", size_bytes=size, ranks=cut.tp),)


def _projections(
    model: LanguageModel, cut: Parallelism, part: Stage, tokens: Column, how: Precision
) -> tuple[Compute, ...]:
    """Return the linear layers around attention and what is fused between them."""
    if model.is_latent:
        return _latent_projections(model, cut, part, tokens, how)
    heads, kv_heads = model.heads / cut.tp, kv_heads_per_gpu(model, cut)
    layers = attending_layers(model, part) if model.has_states else part.layers
    states = _state_projections(model, cut, part.layers - layers, tokens, how)
    qkv = (heads + 2 * kv_heads) * model.head_dim
    rotated = 0.0 if model.learned_positions else heads * model.head_dim
    cached = 2 * kv_heads * model.head_dim
    return (
        _linear("qkv_proj", tokens, qkv, model.hidden, how, layers),
        Elementwise(
            name="rotary_cache_write" if rotated else "cache_write",
            elements=tokens * (rotated + cached),
            dtype=how.activations,
            repeat=layers,
        ),
        _linear("o_proj", tokens, model.hidden, heads * model.head_dim, how, layers),
        *states,
    )


def _state_projections(
    model: LanguageModel, cut: Parallelism, layers: float, tokens: Column, how: Precision
) -> tuple[Compute, ...]:
    """Return what surrounds a layer's state: queries, keys, values and their gate; the output."""
    if not layers:
        return ()
    keys = model.state_key_heads * model.state_head_dim / cut.tp
    values = model.state_value_heads * model.state_head_dim / cut.tp
    return (
        _linear("state_in_proj", tokens, 2 * keys + 2 * values, model.hidden, how, layers),
        Elementwise(
            name="state_convolution_gate",
            elements=tokens * (2 * keys + 2 * values),
            dtype=how.activations,
            repeat=layers,
        ),
        _linear("state_out_proj", tokens, model.hidden, values, how, layers),
    )


def _latent_projections(
    model: LanguageModel, cut: Parallelism, part: Stage, tokens: Column, how: Precision
) -> tuple[Compute, ...]:
    """Return the projections of latent attention; the down-projections run whole on each rank."""
    heads, layers = model.heads / cut.tp, part.layers
    queries = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    rank = model.q_lora_rank
    down = _linear("latent_down", tokens, rank + latent, model.hidden, how, layers)
    up = _linear("q_up", tokens, queries, rank or model.hidden, how, layers)
    norms = Norm(
        name="latent_norms",
        rows=tokens,
        cols=rank + model.kv_lora_rank,
        dtype=how.activations,
        repeat=layers,
    )
    rotary = Elementwise(
        name="rotary_cache_write",
        elements=tokens * (heads * model.qk_rope_head_dim + latent),
        dtype=how.activations,
        repeat=layers,
    )
    out = _linear("o_proj", tokens, model.hidden, heads * model.v_head_dim, how, layers)
    index = index_projections(model, part, tokens, how) if model.index_top_k else ()
    return (down, norms, up, rotary, *index, out)


def _residual_norm(
    name: str, model: LanguageModel, tokens: Column, how: Precision, repeat: int
) -> Elementwise:
    """Return the residual sum fused with the norm after it: two tensors in, two out."""
    return Elementwise(
        name=name,
        elements=tokens * model.hidden,
        reads=2.0,
        writes=2.0,
        dtype=how.activations,
        repeat=repeat,
    )


def _linear(name: str, m: Column, n: Column, k: Column, how: Precision, repeat: float) -> Gemm:
    """Return a linear layer over `m` rows."""
    return Gemm(
        name=name, m=m, n=n, k=k, dtype=how.compute, weight_dtype=how.weights, repeat=repeat
    )
