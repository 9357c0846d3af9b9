"""Memory of a GPU of a replica: weights, KV cache, and the activations of one layer.

Tensor parallelism splits matrices; norms, routers and the down-projections of latent attention are
replicated on every rank, and so are KV heads where there are fewer of them than ranks (Shoeybi et
al., Megatron-LM, 2019; vLLM does the same).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.catalog.model import CONVOLVED, MXFP4, OVERLAPPED, LanguageModel
from simulators.workload.llm.attention import index_bytes_per_token
from simulators.workload.llm.parallelism import (
    GATHERED,
    Parallelism,
    Stage,
    attending_layers,
    attentions,
    kv_heads_per_gpu,
    stage_of,
    state_layers,
)
from simulators.workload.llm.step import Shard
from simulators.workload.operators import Column
from simulators.workload.precision import (
    BYTES,
    MXFP4_SCALE,
    SCALES,
    Precision,
    number_bytes,
    precision,
)

WIDE_WINDOW = 4096
"""Tokens of a window that holds most requests; the cache of smaller windows is not counted."""

MOST_AT_ONCE = 1 << 16
"""Largest number of tokens per expert call where ranks gather their tokens: those of eight ranks in
TensorRT-LLM, which by default does not split a batch. vLLM splits after 16,384 or 32,768, by
release (`VLLM_FUSED_MOE_CHUNK_SIZE`)."""

MXFP4_TILE = 256
"""Inputs of an MXFP4 expert's row are padded to a multiple of this (`round_up` of the hidden size
in vLLM's `mxfp4.py`, 0.11). So gpt-oss-120b takes 64.5 GiB on one H100; vLLM logs 64.4
(vllm-project/vllm, issue 33155)."""


@dataclass(frozen=True)
class Share:
    """Bytes of weights on one GPU of a stage: split matrices, and replicated weights."""

    split: float
    copied: float

    @property
    def total(self) -> float:
        """Bytes on the GPU."""
        return self.split + self.copied


def weight_bytes(model: LanguageModel, layout: Parallelism, dtype: str) -> float:
    """Return the bytes of weights on the fullest GPU of a replica.

    >>> from simulators.catalog.model import load_model
    >>> round(weight_bytes(load_model("llama2_70b"), Parallelism(tp=4), "fp16") / 1e9, 1)
    34.5
    """
    return max(stage_weights(model, layout, dtype, stage).total for stage in range(layout.pp))


def stage_weights(model: LanguageModel, layout: Parallelism, dtype: str, stage: int) -> Share:
    """Return the bytes of weights on each GPU of one pipeline stage."""
    part, how = stage_of(model, layout, stage), precision(dtype)
    split = _linear(model, layout, part) * how.weight_bytes / layout.tp
    held = model.experts + layout.routing.redundant  # routed experts and redundant copies
    experts = part.expert_layers * held * model.expert_parameters
    split += experts * expert_bytes(model, how) / layout.width
    split += _tables(model, part, layout) * how.activation_bytes / layout.tp
    return Share(split=split, copied=_copied_bytes(model, part, how))


def expert_bytes(model: LanguageModel, how: Precision) -> float:
    """Return the stored bytes per weight of a routed expert.

    Experts published in MXFP4 keep their own scales, in rows that are padded to whole tiles.

    >>> from simulators.catalog.model import load_model
    >>> round(expert_bytes(load_model("gpt_oss_120b"), precision("bf16+w4a16")), 4)
    0.5667
    """
    stored = how.expert_weights or how.weights
    if model.published_experts != MXFP4 or stored not in SCALES:
        return how.expert_bytes
    padded = math.ceil(model.hidden / MXFP4_TILE) * MXFP4_TILE
    return (BYTES[stored] + MXFP4_SCALE) * padded / model.hidden


def kv_bytes_per_token(
    model: LanguageModel, layout: Parallelism, kv_dtype: str, *, whole_windows: bool = False
) -> float:
    """Return the KV-cache bytes of one token on the fullest GPU of a replica.

    Under attention data parallelism one group of ranks holds a token; groups are assumed to hold
    equally many tokens. Layers with a sliding window count if whole requests fit into the window,
    or with `whole_windows`: the engine keeps keys beyond the window. Compressed keys count always.

    >>> from simulators.catalog.model import load_model
    >>> kv_bytes_per_token(load_model("llama2_70b"), Parallelism(), "fp16")
    327680.0
    """
    whole = whole_windows and model.window > 0 and not model.compress_ratios
    wide = model.window >= WIDE_WINDOW or whole
    stages = [stage_of(model, layout, stage) for stage in range(layout.pp)]
    shards = (Shard(model, layout, part, "", kv_dtype) for part in stages)
    return float(max(_cached_bytes(one, 1.0, float(wide)) for one in shards)) / layout.attention_dp


def _cached_bytes(shard: Shard, tokens: Any, in_window: Any) -> Any:
    """Return the bytes of `tokens` in a stage's full layers, and of `in_window` in its windows."""
    model, full = shard.model, attending_layers(shard.model, shard.part)
    local = 0.0 if model.has_states else shard.part.layers - full
    found = 0.0
    if model.compress_ratios:
        number = (model.kv_lora_rank + model.qk_rope_head_dim) * number_bytes(shard.kv_dtype)
        ratios = model.compress_ratios
        keys = sum(1.0 / ratio for ratio in ratios if ratio) / len(ratios)
        indexed = index_bytes_per_token(model) / OVERLAPPED
        return shard.part.layers * (in_window * number + tokens * (keys * number + indexed))
    for cached, sizes in ((full * tokens, model), (local * in_window, model.windowed)):
        numbers = kv_heads_per_gpu(sizes, shard.layout) * (sizes.head_dim + sizes.value_dim)
        if model.is_latent:
            numbers = model.kv_lora_rank + model.qk_rope_head_dim
        found += cached * (numbers * number_bytes(shard.kv_dtype) + index_bytes_per_token(model))
    return found


def sequence_bytes(
    model: LanguageModel,
    layout: Parallelism,
    kv_dtype: str,
    context: Column,
    *,
    whole_windows: bool = False,
) -> Column:
    """Return the bytes that a sequence of `context` tokens keeps on the fullest GPU of a replica.

    Keys, values and indexer keys of every layer, of a window at most its tokens, and states. Under
    attention data parallelism sequences are assumed to be spread evenly over the groups of ranks.
    With `whole_windows` the engine keeps keys beyond the window.

    >>> from simulators.catalog.model import load_model
    >>> float(sequence_bytes(load_model("gpt_oss_20b"), Parallelism(), "bf16", 1024.0)) / 2**20
    27.0
    """
    whole = whole_windows and not model.compress_ratios
    in_window = context if whole else np.minimum(context, float(model.window))
    stages = [stage_of(model, layout, stage) for stage in range(layout.pp)]
    shards = (Shard(model, layout, part, "", kv_dtype) for part in stages)
    cached: Column = functools.reduce(
        np.maximum, (_cached_bytes(s, context, in_window) for s in shards)
    )
    return (cached + state_bytes(model, layout) / layout.pp) / layout.attention_dp


def fixed_sequence_bytes(
    model: LanguageModel, layout: Parallelism, kv_dtype: str, *, whole_windows: bool = False
) -> float:
    """Return the bytes of a sequence on a GPU that do not grow with its tokens: windows and states.

    They complete `kv_bytes_per_token`, under the same assumptions.

    >>> from simulators.catalog.model import load_model
    >>> fixed_sequence_bytes(load_model("gpt_oss_120b"), Parallelism(), "bf16") / 2**20
    4.5
    """
    grows = model.window >= WIDE_WINDOW or (whole_windows and not model.compress_ratios)
    shard = Shard(model, layout, stage_of(model, layout, 0), "", kv_dtype)
    in_windows = 0.0 if grows else _cached_bytes(shard, 0.0, float(model.window))
    return (in_windows + state_bytes(model, layout) / layout.pp) / layout.attention_dp


def state_bytes(model: LanguageModel, layout: Parallelism) -> float:
    """Return the bytes of one sequence's states on a GPU; 0 without such layers.

    A layer keeps a matrix per value head in fp32 and the last inputs of its convolution in bf16.

    >>> from simulators.catalog.model import load_model
    >>> state_bytes(load_model("qwen3_next_80b"), Parallelism()) / 2**20
    73.6875
    """
    matrix = model.state_values * model.state_head_dim * BYTES["fp32"]
    inputs = (CONVOLVED - 1) * (2 * model.state_keys + model.state_values) * BYTES["bf16"]
    return model.state_layers * (matrix + inputs) / layout.tp


def activation_bytes(
    model: LanguageModel, layout: Parallelism, dtype: str, tokens: Column, logits_rows: Column
) -> Column:
    """Return the peak workspace of one iteration on one GPU, without weights and KV cache.

    Buffers are reused between layers, so the peak is that of one layer: the residual stream and its
    normed copy, plus the largest of attention (queries, keys, values and output), feed-forward
    (before and after the activation) and experts. The last stage adds the logits, in the
    activations' precision and in fp32.
    """
    how = precision(dtype)
    if model.is_latent:
        head = model.qk_nope_head_dim + model.qk_rope_head_dim
        attention = model.heads * (2 * head + 2 * model.v_head_dim) / layout.tp
    else:
        attention = 2 * (model.heads / layout.tp + kv_heads_per_gpu(model, layout)) * model.head_dim
    ffn = (3 if model.gated_ffn else 2) * model.ffn / layout.tp
    beside = tokens * max(attention, ffn) * how.activation_bytes
    beside = np.maximum(beside, _routed_bytes(model, layout, dtype, tokens))
    layer = tokens * 2 * model.hidden * how.activation_bytes + beside
    logits = logits_rows * (model.vocab / layout.tp) * (how.activation_bytes + BYTES["fp32"])
    return layer + logits


def _routed_bytes(model: LanguageModel, layout: Parallelism, dtype: str, tokens: Column) -> Column:
    """Return the expert workspace of a rank in bytes, for all tokens routed to the rank.

    Under attention data parallelism a rank gathers the tokens of all ranks and returns as many
    sums; with DeepEP it receives, if experts are balanced, a row per expert that a token chooses.
    The two products of a chunk share an input buffer and a 16-bit output buffer, as in
    TensorRT-LLM (`getWorkspaceSize` of its CUTLASS runner; `moe_max_num_tokens`, by default the
    tokens of an iteration times the ranks) and, with one more copy, vLLM's `fused_moe.py`.
    """
    if not model.experts:
        return 0.0
    ranks, read_bytes = layout.attention_dp, precision(dtype).activation_bytes
    gathered = model.expert_width * (read_bytes + BYTES["bf16"]) if ranks > 1 else 0.0
    is_gathered = layout.routing.backend == GATHERED
    rows = ranks * tokens if is_gathered else model.top_k * tokens
    most = np.minimum(ranks * tokens, MOST_AT_ONCE) if is_gathered else tokens
    at_once = np.maximum(tokens, most)
    ffn = model.expert_ffn * layout.ep / layout.width
    written = max((2 if model.gated_ffn else 1) * ffn, model.expert_width) * BYTES["bf16"]
    chosen = model.top_k * (max(ffn, model.expert_width) * read_bytes + written)
    return rows * gathered + at_once * chosen


def _linear(model: LanguageModel, layout: Parallelism, part: Stage) -> float:
    """Return the number of a stage's weights that tensor parallelism splits, with KV copies."""
    numbers: float = part.dense_layers * (model.dense_ffn_parameters - model.biases * model.hidden)
    numbers += part.expert_layers * model.shared_parameters
    numbers += state_layers(model, part) * model.state_parameters
    for layers, sizes in attentions(model, part):
        attention = sizes.attention_parameters - _copied_attention(sizes)
        if not model.is_latent:
            copies = kv_heads_per_gpu(sizes, layout) * layout.tp - sizes.kv_heads
            bias = model.biases or model.qkv_biases
            width = sizes.head_dim + sizes.value_dim * (not sizes.values_are_keys)
            attention += copies * width * (model.hidden + bias)
        numbers += layers * attention
    return numbers


def _tables(model: LanguageModel, part: Stage, layout: Parallelism) -> float:
    held = int(part.has_embedding) + int(part.has_head)
    if model.tied_embeddings and layout.pp == 1:
        held = 1
    return held * model.vocab * model.hidden


def _copied_attention(model: LanguageModel) -> int:
    """Return the number of one layer's attention weights that are replicated on every rank."""
    if model.is_latent:
        down = model.kv_lora_rank + model.qk_rope_head_dim + model.q_lora_rank
        norms = model.kv_lora_rank + model.q_lora_rank
        return model.hidden * down + norms + model.index_parameters + model.compressor_parameters
    return model.qk_norm_parameters + model.hidden * model.biases + model.index_parameters


def _copied_bytes(model: LanguageModel, part: Stage, how: Precision) -> float:
    """Return the replicated bytes of a stage: norms, routers, positions, latent projections."""
    down = model.kv_lora_rank + model.qk_rope_head_dim + model.q_lora_rank
    queries = model.q_lora_rank * model.index_heads * model.index_head_dim * model.index_share
    latent = attentions(model, part)[0][0] if model.is_latent else 0
    matrices = latent * (model.hidden * down + queries)
    around = model.norm_parameters + model.mixing_parameters
    norms = (2 * part.layers - part.bare_layers) * around
    attention = sum(layers * _copied_attention(m) for layers, m in attentions(model, part))
    rest = attention + norms - matrices
    rest += part.dense_layers * model.biases * model.hidden
    rest += part.expert_layers * model.hidden * model.experts
    rest += part.has_head * model.norm_parameters
    rest += part.has_embedding * model.learned_positions * model.hidden
    matrices += part.expert_layers * 2 * model.hidden * model.expert_hidden
    return matrices * how.weight_bytes + rest * how.activation_bytes
