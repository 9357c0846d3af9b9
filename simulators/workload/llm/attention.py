"""Attention reads keys and values of every earlier token; decode reads a lot and computes little.

Latent attention (DeepSeek-V2, 2024) caches one latent of `kv_lora_rank + qk_rope_head_dim` numbers
per token for all heads. Prefill expands it to keys and values of every head; decode absorbs the
expansion into the queries and the output, and attends in the latent space: per head and key
`kv_lora_rank + qk_rope_head_dim` products for the score and `kv_lora_rank` for the sum. Where an
indexer chooses keys, each query of a long prompt gathers its own, and attends as a decode does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.indexer import index_choice
from simulators.workload.llm.parallelism import (
    Parallelism,
    Stage,
    attending_layers,
    kv_heads_per_gpu,
)
from simulators.workload.llm.step import Step
from simulators.workload.operators import Attention, Column, Compute, Elementwise, Gemm
from simulators.workload.precision import precision

STATE_CHUNK = 64.0
"""Tokens of a prompt between two states, in the chunked form of the gated delta rule."""


def prefill_operators(
    model: LanguageModel, cut: Parallelism, part: Stage, step: Step, dtype: str, kv_dtype: str
) -> tuple[Compute, ...]:
    """Return the attention of prompt chunks: it depends on the step's prefill sums alone."""
    if not model.is_latent:
        return _attentions("prefill", model, cut, part, step, dtype, kv_dtype)
    if model.index_top_k:
        return _indexed_prefill(model, cut, part, step, dtype, kv_dtype)
    return _expanded_prefill(model, cut, part, step, dtype)


def _indexed_prefill(
    model: LanguageModel, cut: Parallelism, part: Stage, step: Step, dtype: str, kv_dtype: str
) -> tuple[Compute, ...]:
    """Return prompts whose queries attend to chosen keys, where there are more than are chosen.

    Prompts are long or short on average; the others' sizes are 1, so that they cost their launches.
    """
    longest = step.prefill_kv_tokens / np.maximum(step.prefills, 1.0)
    is_long = np.asarray(longest > model.index_top_k)
    sums = ("prefills", "prefill_tokens", "prefill_pairs", "prefill_kv_tokens")
    short = replace(step, **{n: np.where(is_long, 1.0, getattr(step, n)) for n in sums})
    queries = np.where(is_long, step.prefill_tokens, 1.0)
    pairs = np.where(is_long, step.prefill_pairs, 1.0)
    chosen = np.minimum(pairs, queries * model.index_top_k)
    as_decodes = replace(step, decodes=queries, decode_kv_tokens=chosen)
    return (
        *_expanded_prefill(model, cut, part, short, dtype),
        *index_choice("prefill", model, part, queries, pairs, precision(dtype)),
        *_latent_decode(model, cut, part, as_decodes, dtype, kv_dtype),
    )


def _expanded_prefill(
    model: LanguageModel, cut: Parallelism, part: Stage, step: Step, dtype: str
) -> tuple[Compute, ...]:
    """Return latent attention of prompts: keys and values of every head are made of latents."""
    how, heads = precision(dtype), model.heads / cut.tp
    score = model.qk_nope_head_dim + model.qk_rope_head_dim
    expand = Gemm(
        name="kv_up",
        m=step.prefill_kv_tokens,
        n=heads * (model.qk_nope_head_dim + model.v_head_dim),
        k=model.kv_lora_rank,
        dtype=how.compute,
        weight_dtype=how.weights,
        repeat=part.layers,
    )
    attention = Attention(
        name="prefill_attention",
        phase="prefill",
        requests=step.prefills,
        query_tokens=step.prefill_tokens,
        pairs=step.prefill_pairs,
        kv_tokens=step.prefill_kv_tokens,
        heads=heads,
        kv_heads=heads,
        head_dim=(score + model.v_head_dim) / 2.0,  # scores and sums have widths of their own
        dtype=how.activations,
        kv_dtype=how.activations,
        repeat=part.layers,
    )
    return (expand, attention)


def decode_operators(
    model: LanguageModel, cut: Parallelism, part: Stage, step: Step, dtype: str, kv_dtype: str
) -> tuple[Compute, ...]:
    """Return the attention of single new tokens: it depends on the decodes and their keys alone."""
    if not model.is_latent:
        return _attentions("decode", model, cut, part, step, dtype, kv_dtype)
    if not model.index_top_k:
        return _latent_decode(model, cut, part, step, dtype, kv_dtype)
    chosen = np.minimum(step.decode_kv_tokens, step.decodes * model.index_top_k)
    return (
        *index_choice("decode", model, part, step.decodes, step.decode_kv_tokens, precision(dtype)),
        *_latent_decode(model, cut, part, replace(step, decode_kv_tokens=chosen), dtype, kv_dtype),
    )


def _latent_decode(
    model: LanguageModel, cut: Parallelism, part: Stage, step: Step, dtype: str, kv_dtype: str
) -> tuple[Compute, ...]:
    """Return attention of single queries in the latent space."""
    how, heads = precision(dtype), model.heads / cut.tp
    cached = model.kv_lora_rank + model.qk_rope_head_dim
    width = (cached + model.kv_lora_rank) / 2.0
    attention = Attention(
        name="decode_attention",
        phase="decode",
        requests=step.decodes,
        query_tokens=step.decodes,
        pairs=step.decode_kv_tokens,
        kv_tokens=step.decode_kv_tokens,
        heads=heads,
        kv_heads=cached / (2.0 * width),  # one latent per token serves as key and as value
        head_dim=width,
        dtype=how.activations,
        kv_dtype=kv_dtype,
        repeat=part.layers,
    )
    latent, layers, dtype = model.kv_lora_rank, part.layers, how.activations
    nope = model.qk_nope_head_dim
    return (
        _per_head("q_absorb", step.decodes, latent, nope, heads, dtype, layers),
        attention,
        _per_head("v_expand", step.decodes, model.v_head_dim, latent, heads, dtype, layers),
    )


def _attentions(
    phase: str,
    model: LanguageModel,
    cut: Parallelism,
    part: Stage,
    step: Step,
    dtype: str,
    kv_dtype: str,
) -> tuple[Compute, ...]:
    """Return the layers that see all tokens, and those that see a window or keep a state."""
    full = attending_layers(model, part)
    whole = _attention(phase, model, cut, full, step, dtype, kv_dtype)
    rest = part.layers - full
    if not rest:
        return (whole,)
    if model.has_states:
        return (whole, _state_update(phase, model, cut, rest, step))
    seen = _seen_through(step, float(model.window))
    local = _attention(phase, model, cut, rest, seen, dtype, kv_dtype)
    name = f"{phase}_window_attention"
    return (whole, replace(local, name=name, window=float(model.window)))


def _seen_through(step: Step, window: float) -> Step:
    """Return a step whose queries see no more than a window."""
    return replace(
        step,
        prefill_pairs=np.minimum(step.prefill_pairs, step.prefill_tokens * window),
        prefill_kv_tokens=np.minimum(
            step.prefill_kv_tokens, step.prefill_tokens + step.prefills * window
        ),
        decode_kv_tokens=np.minimum(step.decode_kv_tokens, step.decodes * window),
    )


def _state_update(
    phase: str, model: LanguageModel, cut: Parallelism, layers: float, step: Step
) -> Elementwise:
    """Return the traffic of states: a decode reads and writes its own, a prompt one per chunk.

    A state is a matrix of `state_head_dim` squared per value head (Yang et al., "Gated delta
    networks", 2024), kept in fp32; prompts are taken in chunks of 64 tokens.
    """
    state = model.state_value_heads * model.state_head_dim**2 / cut.tp
    chunks = step.prefill_tokens / STATE_CHUNK if phase == "prefill" else step.decodes
    return Elementwise(name=f"{phase}_state", elements=chunks * state, dtype="fp32", repeat=layers)


def _attention(
    phase: str,
    model: LanguageModel,
    cut: Parallelism,
    layers: float,
    step: Step,
    dtype: str,
    kv_dtype: str,
) -> Attention:
    """Return attention with keys and values of every head, or of groups of heads."""
    prefill = phase == "prefill"
    return Attention(
        name=f"{phase}_attention",
        phase=phase,
        requests=step.prefills if prefill else step.decodes,
        query_tokens=step.prefill_tokens if prefill else step.decodes,
        pairs=step.prefill_pairs if prefill else step.decode_kv_tokens,
        kv_tokens=step.prefill_kv_tokens if prefill else step.decode_kv_tokens,
        heads=model.heads / cut.tp,
        kv_heads=float(kv_heads_per_gpu(model, cut)),
        head_dim=float(model.head_dim),
        dtype=precision(dtype).activations,
        kv_dtype=kv_dtype,
        repeat=layers,
    )


def _per_head(
    name: str, rows: Column, n: float, k: float, heads: float, dtype: str, repeat: int
) -> Gemm:
    """Return one small matrix product for each head."""
    return Gemm(name=name, m=rows, n=n, k=k, batch=heads, dtype=dtype, repeat=repeat)
