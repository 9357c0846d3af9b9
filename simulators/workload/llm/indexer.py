"""The indexer of sparse attention: it scores all keys for each query, and the best are attended to.

DeepSeek sparse attention ("DeepSeek-V3.2: pushing the frontier of open large language models",
2025; GLM-5 has it too): a few small heads, copied to every tensor rank, score one narrow fp8 key
per token; the `index_top_k` best are attended to in the latent space. Traffic is counted in bytes,
as numbers of fp8.
"""

from __future__ import annotations

import numpy as np

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.shard import Shard
from simulators.workload.operators import Column, Compute, Gemm
from simulators.workload.precision import BYTES

KEY_BYTES, SCALE_BYTES, SCORE_BYTES = BYTES["fp8"], BYTES["fp32"], BYTES["fp32"]


def index_bytes_per_token(model: LanguageModel) -> float:
    """Return the bytes of a token's key for the indexer in one layer; none without one."""
    return model.index_head_dim * KEY_BYTES + SCALE_BYTES if model.index_top_k else 0.0


def index_projections(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return what makes the indexer's queries, keys and weights of heads."""
    model, layers, key = shard.model, shard.part.layers, shard.model.index_head_dim
    queries = model.index_heads * key
    return (
        shard.linear("index_query", tokens, queries, model.q_lora_rank, layers),
        shard.wide("index_key", tokens, key, model.hidden, layers),
        shard.wide("index_weights", tokens, model.index_heads, model.hidden, layers),
        shard.norm("index_norm", tokens, key, layers, "layer_norm"),
        shard.pointwise("index_rotary_rotation", tokens * (queries + key), layers),
        shard.pointwise("index_quantise", tokens * (queries + key), layers, writes=0.5),
    )


def index_choice(phase: str, shard: Shard, queries: Column, pairs: Column) -> tuple[Compute, ...]:
    """Return the scores of pairs of queries and keys, and the choice among them.

    Decodes read each key for one query; the keys of a prompt are shared by its queries, and the
    kernel sums over heads. What is written of the few keys chosen counts nothing.
    """
    model, how, layers = shard.model, shard.how, shard.part.layers
    if phase == "decode":
        read = index_bytes_per_token(model)
        scores: Compute = shard.pointwise("index_scores", pairs, layers, read, SCORE_BYTES, "fp8")
    else:
        scores = Gemm(
            name="index_scores",
            m=queries,
            n=np.maximum(pairs / np.maximum(queries, 1.0), 1.0),
            k=model.index_heads * model.index_head_dim,
            dtype=how.compute if how.compute == "fp8" else how.activations,
            repeat=layers,
        )
    return scores, shard.pointwise("index_choice", pairs, layers, SCORE_BYTES, 0.0, "fp8")
