"""Sparse attention kernels read whole lists of keys and whole tiles of heads.

An indexer fills a list of as many keys as it may choose for each query (DeepSeek-V3.2, GLM-5). In a
short context the rest of the list is empty and still computed. FlashMLA's kernels take 64 heads or
more per rank, so tensor-parallel engines pad (TensorRT-LLM's collector for these kernels; sgl-
project/sglang, pull request 13646; vllm-project/recipes, pull request 234).

In prompts shorter than the list SGLang attends to all keys (pull request 11892), vLLM has no such
path (`SparseMLAAttentionImpl`), and TensorRT-LLM's is off by default
(`TRTLLM_MLA_SHORT_SEQ_MHA_THRESHOLD`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulators.catalog.model import LanguageModel
from simulators.workload.operators import Attention, Compute

TILE_HEADS = 64.0


def whole_lists(operators: Sequence[Compute], model: LanguageModel) -> tuple[Compute, ...]:
    """Return operators of attention as kernels run them where an indexer chooses keys.

    >>> from simulators.catalog.model import load_model
    >>> few = Attention(
    ...     name="decode_attention", phase="decode", requests=2.0, query_tokens=2.0, pairs=600.0,
    ...     kv_tokens=600.0, heads=16.0, kv_heads=1.0, head_dim=544.0, latent=True,
    ...     dtype="bf16", kv_dtype="bf16",
    ... )
    >>> [whole] = whole_lists((few,), load_model("deepseek_v3_2"))
    >>> whole.heads, whole.kv_tokens, whole_lists((few,), load_model("deepseek_v3")) == (few,)
    (64.0, 4096.0, True)
    """
    top_k = model.index_top_k
    return tuple(
        replace(
            one,
            heads=max(one.heads, TILE_HEADS),
            pairs=one.query_tokens * top_k,
            kv_tokens=one.query_tokens * top_k,
        )
        if top_k and isinstance(one, Attention) and one.latent and one.phase == "decode"
        else one
        for one in operators
    )
