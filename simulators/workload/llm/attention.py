"""Attention of prompts and of single new tokens, over cached keys, windows, latents or states.

Latent attention (DeepSeek-V2, 2024) caches one latent of `kv_lora_rank + qk_rope_head_dim` numbers
per token for all heads. Prefill expands it to keys and values of every head; decode absorbs the
expansion into the queries and the output, and attends in the latent space: per head and key
`kv_lora_rank + qk_rope_head_dim` products for the score and `kv_lora_rank` for the sum.

The indexer of sparse attention scores all keys for each query, and the query attends to the best
("DeepSeek-V3.2: pushing the frontier of open large language models", 2025; GLM-5 has it too): a few
small heads, copied to every tensor rank, score one narrow fp8 key per token; the query attends to
the `index_top_k` best keys in the latent space. Each query of a long prompt gathers its own keys,
and attends as a decode does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulators.catalog.model import OVERLAPPED, LanguageModel
from simulators.workload.llm.parallelism import (
    attending_layers,
    attentions,
    kv_heads_per_gpu,
    state_layers,
)
from simulators.workload.llm.step import PREFILL_SUMS, Shard, Step
from simulators.workload.operators import (
    Attention,
    CausalConvolution,
    Column,
    Compute,
    Gemm,
    IndexChoice,
    IndexScores,
    StateUpdate,
)
from simulators.workload.precision import BYTES

KEY_SUMS = ("prefill_pairs", "prefill_kv_tokens", "decode_kv_tokens")
KEY_BYTES, SCALE_BYTES = BYTES["fp8"], BYTES["fp32"]


def index_bytes_per_token(model: LanguageModel) -> float:
    """Return the bytes of a token's indexer key, by layer; 0 without an indexer."""
    key = model.index_head_dim * KEY_BYTES + SCALE_BYTES if model.index_top_k else 0.0
    return key * model.index_share


def index_projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the operators that compute the indexer's queries, keys and head weights."""
    model, key = shard.model, shard.model.index_head_dim
    compressed = bool(model.compress_ratios)  # two overlapping windows of values and gates
    queries, layers = model.index_heads * key, shard.part.layers * model.index_share
    return (
        shard.linear("index_query", tokens, queries, model.q_lora_rank or model.hidden, layers),
        shard.wide("index_key", tokens, 4 * key if compressed else key, model.hidden, layers),
        shard.wide("index_weights", tokens, model.index_heads, model.hidden, layers),
        shard.norm("index_norm", tokens, key, layers, "layer_norm"),
        shard.pointwise("index_rotary_rotation", tokens * (queries + key), layers),
        shard.pointwise("index_quantise", tokens * (queries + key), layers, writes=0.5),
    )


def index_heads_per_gpu(shard: Shard) -> float:
    """Return the indexer's heads on a GPU; only those beside grouped keys and values are split."""
    model = shard.model
    return float(
        model.index_heads if model.is_latent else max(1.0, model.index_heads / shard.layout.tp)
    )


def index_choice(phase: str, shard: Shard, sums: dict[str, Any]) -> tuple[Compute, ...]:
    """Return the indexer's scores of query-key pairs, and the top-k choice.

    `sums`: over requests, by the fields of `Attention`. Scores are multiplied in 8 bits where
    linear layers are.
    """
    model, how = shard.model, shard.how
    shared = {name: sums[name] for name in ("requests", "query_tokens", "pairs", "kv_tokens")}
    shared["repeat"] = shard.part.layers * model.index_share
    block = float(model.index_block)
    blocks = {name: shared[name] / block for name in ("pairs", "kv_tokens")}
    return (
        IndexScores(
            name="index_scores",
            phase=phase,
            heads=index_heads_per_gpu(shard),
            head_dim=float(model.index_head_dim),
            block=block,
            dtype="fp8" if how.compute.startswith("fp8") else how.activations,
            **shared,
        ),
        IndexChoice(name="index_choice", top_k=model.index_top_k / block, **(shared | blocks)),
    )


def prefill_operators(shard: Shard, step: Step, *, chooses: bool = False) -> tuple[Compute, ...]:
    """Return the attention of prompt chunks, which depends only on the step's prefill sums.

    `chooses`: the indexer also runs in short prompts, where it chooses all keys.
    """
    if not shard.model.is_latent:
        return _attentions("prefill", shard, step)
    if shard.model.compress_ratios:
        return _compressed("prefill", shard, step)
    if shard.model.index_top_k:
        return _indexed_prefill(shard, step, chooses)
    return (*_expanded_prefill(shard, step), *_states("prefill", shard, step))


def decode_operators(shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return the attention of decodes, which depends only on their number and their keys."""
    top_k = shard.model.index_top_k
    if not shard.model.is_latent:
        return _attentions("decode", shard, step)
    if shard.model.compress_ratios:
        return _compressed("decode", shard, step)
    if not top_k:
        return (*_latent_decode(shard, step), *_states("decode", shard, step))
    chosen = np.minimum(step.decode_kv_tokens, step.decodes * top_k)
    listed = _latent_decode(shard, replace(step, decode_kv_tokens=chosen))
    return (
        *index_choice("decode", shard, _sums("decode", step)),
        *_by_lists(listed, step.decodes, step.decode_kv_tokens),
    )


def _compressed(phase: str, shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return attention to a window and to compressed keys, one layer type after the other.

    DeepSeek-V4 (2026): a key of each `ratio` tokens serves as value, too; of overlapping ratios an
    indexer selects the `index_top_k` best.
    """
    model, found = shard.model, list[Compute]()
    for ratio, count in sorted(Counter(model.compress_ratios).items()):
        near, far = _seen_through(step, float(model.window)), step
        scale = 1.0 / ratio if ratio else 0.0
        far = replace(step, **{name: getattr(step, name) * scale for name in KEY_SUMS})
        if ratio == OVERLAPPED:
            found += index_choice(phase, shard, _sums(phase, far))
            far = _seen_through(far, float(model.index_top_k))
        both = {name: getattr(near, name) + getattr(far, name) for name in KEY_SUMS}
        layers = shard.part.layers * count / len(model.compress_ratios)
        attention = _attention(phase, shard, layers, replace(step, **both))
        name = f"{phase}_attention_{ratio}" if ratio else attention.name
        latent = replace(attention, name=name, kv_heads=0.5, latent=True)
        gathered = replace(latent, kv_tokens=latent.pairs)
        found += _by_lists((gathered,), latent.requests, latent.kv_tokens)
    return tuple(found)


def _by_lists(
    operators: Sequence[Compute], requests: Column, context_tokens: Column
) -> list[Compute]:
    """Return operators whose attention gathers keys by lists, from all keys of the requests."""
    lists: dict[str, Any] = {"listed": True, "requests": requests, "context_tokens": context_tokens}
    return [replace(one, **lists) if isinstance(one, Attention) else one for one in operators]


def mixed_operators(shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return the attention of prompt chunks and decodes in one kernel.

    State updates stay separate; no library has such a kernel for latent attention.
    """
    if shard.model.is_latent:
        return ()
    found: list[Compute] = []
    both = (_attentions(phase, shard, step) for phase in ("prefill", "decode"))
    for chunks, decodes in zip(*both, strict=True):
        if isinstance(chunks, Attention) and isinstance(decodes, Attention):
            found.append(_together(chunks, decodes))
        else:
            found += [chunks, decodes]
    return tuple(found)


def _together(chunks: Attention, decodes: Attention) -> Attention:
    return replace(
        chunks,
        name=chunks.name.replace(chunks.phase, "mixed"),
        phase="mixed",
        requests=chunks.requests + decodes.requests,
        query_tokens=chunks.query_tokens + decodes.query_tokens,
        pairs=chunks.pairs + decodes.pairs,
        kv_tokens=chunks.kv_tokens + decodes.kv_tokens,
        decodes=decodes.requests,
        decode_kv_tokens=decodes.kv_tokens,
        context_tokens=chunks.context_tokens + decodes.context_tokens,
    )


def _indexed_prefill(shard: Shard, step: Step, chooses: bool) -> tuple[Compute, ...]:
    """Return the attention of prompts with an indexer: sparse above `index_top_k` keys.

    Rows are long or short by their mean prompt; the other kind has sizes of 1, so that only its
    launches count.
    """
    top_k = shard.model.index_top_k
    longest = step.prefill_kv_tokens / np.maximum(step.prefills, 1.0)
    is_long = np.asarray(longest > top_k) | chooses
    short = replace(step, **{n: np.where(is_long, 1.0, getattr(step, n)) for n in PREFILL_SUMS})
    queries = np.where(is_long, step.prefill_tokens, 1.0)
    pairs = np.where(is_long, step.prefill_pairs, 1.0)
    chosen = np.minimum(pairs, queries * top_k)
    prompts, keys = (
        np.where(is_long, sums, 1.0) for sums in (step.prefills, step.prefill_kv_tokens)
    )
    listed = _latent_decode(shard, replace(step, decodes=queries, decode_kv_tokens=chosen))
    scored = {"requests": prompts, "query_tokens": queries, "pairs": pairs, "kv_tokens": keys}
    return (
        *_expanded_prefill(shard, short),
        *index_choice("prefill", shard, scored),
        *_by_lists(listed, prompts, keys),
    )


def _expanded_prefill(shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return latent attention of prompts, with latents expanded to keys and values of all heads."""
    model, heads, layers = shard.model, shard.heads, latent_layers(shard)
    score = model.qk_nope_head_dim + model.qk_rope_head_dim
    n = heads * (model.qk_nope_head_dim + model.v_head_dim)
    attention = replace(
        _attention("prefill", shard, layers, step),
        kv_heads=heads,
        head_dim=(score + model.v_head_dim) / 2.0,  # scores and sums have different widths
        latent=True,
        kv_dtype=shard.how.activations,
    )
    up = shard.linear("kv_up", step.prefill_kv_tokens, n, model.kv_lora_rank, layers)
    return up, attention


def _latent_decode(shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return attention of single queries in the latent space."""
    model, heads, latent = shard.model, shard.heads, shard.model.kv_lora_rank
    dtype, layers = shard.how.activations, latent_layers(shard)
    cached = latent + model.qk_rope_head_dim
    width = (cached + latent) / 2.0

    def per_head(name: str, n: float, k: float) -> Gemm:
        return Gemm(name=name, m=step.decodes, n=n, k=k, batch=heads, dtype=dtype, repeat=layers)

    attention = replace(
        _attention("decode", shard, layers, step),
        kv_heads=cached / (2.0 * width),  # one latent per token serves as key and as value
        head_dim=width,
        latent=True,
    )
    return (
        per_head("q_absorb", latent, model.qk_nope_head_dim),
        attention,
        per_head("v_expand", model.v_head_dim, latent),
    )


def _attentions(phase: str, shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return the layers of full attention, then layers with a window or a state."""
    model = shard.model
    full = attending_layers(model, shard.part)
    whole = _attention(phase, shard, full, step)
    rest = shard.part.layers - full
    if model.index_top_k:
        return _sparse(phase, shard, step, whole)
    if not rest:
        return (whole,)
    if model.has_states:
        return (whole, *_states(phase, shard, step))
    sizes = replace(shard, model=model.windowed)
    local = _attention(phase, sizes, rest, _seen_through(step, float(model.window)))
    hidden = step.decode_kv_tokens if phase == "decode" else 0.0
    name = f"{phase}_window_attention"
    local = replace(local, name=name, window=float(model.window), context_tokens=hidden)
    return (whole, local)


def _sparse(phase: str, shard: Shard, step: Step, whole: Attention) -> tuple[Compute, ...]:
    """Return full layers, and layers whose indexer selects blocks of keys (MiniMax-M3, 2026)."""
    top_k, indexed = float(shard.model.index_top_k), whole.repeat * shard.model.index_share
    chosen = _attention(phase, shard, indexed, _seen_through(step, top_k))
    seen = step.decode_kv_tokens if phase == "decode" else step.prefill_kv_tokens
    return (
        replace(whole, repeat=whole.repeat - indexed),
        *index_choice(phase, shard, _sums(phase, step)),
        replace(chosen, name=f"{phase}_sparse_attention", listed=True, context_tokens=seen),
    )


def _seen_through(step: Step, window: float) -> Step:
    return replace(
        step,
        prefill_pairs=np.minimum(step.prefill_pairs, step.prefill_tokens * window),
        prefill_kv_tokens=np.minimum(
            step.prefill_kv_tokens, step.prefill_tokens + step.prefills * window
        ),
        decode_kv_tokens=np.minimum(step.decode_kv_tokens, step.decodes * window),
    )


def latent_layers(shard: Shard) -> float:
    """Return the number of a stage's layers with latent attention; others keep a state."""
    return attentions(shard.model, shard.part)[0][0]


def _states(phase: str, shard: Shard, step: Step) -> tuple[Compute, ...]:
    """Return the operators of layers with a recurrent state instead of attention.

    A short convolution over queries, keys and values comes first; then tokens update a matrix per
    value head, prompts in chunks.
    """
    model, tp, layers = shard.model, shard.layout.tp, state_layers(shard.model, shard.part)
    if not layers:
        return ()
    sums = _sums(phase, step)
    shared = {name: sums[name] for name in ("phase", "requests")}
    shared |= {"tokens": sums["query_tokens"], "dtype": shard.how.activations, "repeat": layers}
    channels = (2 * model.state_keys + model.state_values) / tp
    update = StateUpdate(
        name=f"{phase}_state",
        key_heads=model.state_key_heads / tp,
        value_heads=model.state_value_heads / tp,
        key_dim=float(model.state_head_dim),
        value_dim=float(model.state_value_dim or model.state_head_dim),
        rule=model.state_rule,
        **shared,
    )
    name = f"{phase}_state_convolution"
    rule = model.state_rule
    return CausalConvolution(name=name, channels=channels, rule=rule, **shared), update


def _sums(phase: str, step: Step) -> dict[str, Any]:
    """Return a phase and the sums over its batch, by the fields of `Attention`."""
    decode = ("decodes", "decodes", "decode_kv_tokens", "decode_kv_tokens")
    sums = (getattr(step, name) for name in (PREFILL_SUMS if phase == "prefill" else decode))
    names = ("requests", "query_tokens", "pairs", "kv_tokens")
    return {"phase": phase, **dict(zip(names, sums, strict=True))}


def _attention(phase: str, shard: Shard, layers: float, step: Step) -> Attention:
    return Attention(
        name=f"{phase}_attention",
        **_sums(phase, step),
        heads=shard.heads,
        kv_heads=float(kv_heads_per_gpu(shard.model, shard.layout)),
        head_dim=(shard.model.head_dim + shard.model.value_dim) / 2.0,
        dtype=shard.how.activations,
        kv_dtype=shard.kv_dtype,
        repeat=layers,
        sinks=shard.model.attention_sinks,
    )
