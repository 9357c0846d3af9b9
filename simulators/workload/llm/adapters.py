"""Low-rank adapters beside linear layers: their numbers, and the products that a step adds.

An adapter of rank `r` adds `x A B` to a layer's output, `A` of in x r and `B` of r x out (Hu et
al., LoRA, 2021): a product that shrinks and one that expands. Requests of a batch may have others.
Either the tokens of an adapter are multiplied together, so that each is read once (Punica's SGMV,
vLLM), or every token reads the one it needs (BGMV, as S-LoRA decodes).
"""

from __future__ import annotations

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.parallelism import kv_heads_per_gpu
from simulators.workload.llm.shard import Shard
from simulators.workload.operators import Column, Gemm

TARGETS = ATTENTION, ALL = "attention", "all"
"""The layers that have adapters: projections around attention, or those of dense layers too."""


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

    The rank is of all adapters, groups of tokens are multiplied by one copy of an adapter. `fused`:
    layers with the same input, as queries, keys and values, are adapted in one launch.
    """
    model, part, tp = shard.model, shard.part, shard.cut.tp
    head, ffn, hidden = model.head_dim, model.ffn / tp, float(model.hidden)
    queries, keys = shard.heads * head, kv_heads_per_gpu(model, shard.cut) * head
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
