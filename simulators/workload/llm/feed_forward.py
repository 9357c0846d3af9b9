"""Feed-forward blocks of dense models and of mixtures of experts.

Tensor parallelism cuts every expert's width, so each GPU holds a slice of all experts; expert
parallelism deals out whole experts. `tokens` are those of one group of ranks; where several groups
attend on their own, the experts see the tokens of all. All ranks wait for the one whose experts
were chosen most.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from simulators.catalog.model import MXFP4, LanguageModel
from simulators.workload.llm.routing import skewed_share
from simulators.workload.llm.shard import Shard
from simulators.workload.operators import Column, Compute, GroupedGemm

SEEN_BY_EXPERTS = ("gather_by_expert", "experts_up", "experts_activation", "experts_down")
"""Operators that see the tokens of all groups of ranks."""


def feed_forward(shard: Shard, tokens: Column) -> tuple[Compute, ...]:
    """Return the feed-forward blocks of a stage, dense layers first."""
    model, cut, part = shard.model, shard.cut, shard.part
    dense = _block("ffn", shard, model.ffn / cut.tp, tokens, part.dense_layers)
    if not part.expert_layers:
        return dense
    mixture = _mixture(shard, tokens)
    if model.shared_experts:
        width = model.shared_experts * model.expert_ffn / cut.tp
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
    """Return routing, the gathering of rows by expert, the experts, and the weighted sum."""
    model, cut = shard.model, shard.cut
    repeat, hidden = shard.part.expert_layers, model.hidden
    width, up = model.expert_ffn / cut.expert_tp, 2 if model.gated_ffn else 1
    everywhere = tokens * cut.attention_dp
    everywhere = everywhere * busiest_share(model, cut.ep, everywhere)
    everywhere = everywhere * skewed_share(
        model.experts,
        model.top_k,
        cut.ep,
        cut.routing.skew,
        redundant=cut.routing.redundant,
        counted=cut.routing.counted,
    )
    routed = everywhere * model.top_k / cut.ep  # rows of the busiest GPU's experts
    return (
        shard.wide("router", tokens, model.experts, hidden, repeat),
        shard.pointwise("gather_by_expert", routed * hidden, repeat),
        _experts("experts_up", shard, everywhere, up * width, hidden),
        shard.pointwise("experts_activation", routed * width, repeat, float(up)),
        _experts("experts_down", shard, everywhere, hidden, width),
        shard.pointwise("weighted_sum", tokens * hidden, repeat, float(model.top_k)),
    )


def _experts(name: str, shard: Shard, tokens: Column, n: float, k: float) -> GroupedGemm:
    model, how, ep = shard.model, shard.how, shard.cut.ep
    stored = how.expert_weights or how.weights
    if stored == "int4" and model.published_experts == MXFP4:
        stored = "fp4"  # as many bits, but the kernels of a format whose numbers share exponents
    return GroupedGemm(
        name=name,
        tokens=tokens,
        n=n,
        k=k,
        experts=(model.experts + shard.cut.routing.redundant) // ep,
        top_k=model.top_k / ep,
        dtype=how.expert_compute or how.compute,
        weight_dtype=stored,
        width=model.expert_ffn / shard.cut.expert_tp,
        ranks=float(ep),
        repeat=shard.part.expert_layers,
    )


def busiest_share(model: LanguageModel, parts: int, tokens: Column) -> Column:
    """Return the rows of the part of the experts chosen most, over those of the mean part.

    Tokens choose `k` of `E` experts at random, so the rows of a part have a variance of
    `T k (1 - k/E) / parts`, and the largest of several normal numbers is where Blom expects it
    ("Statistical estimates and transformed beta-variables", 1958). Experts that all tokens like
    come on top (`skewed_share`).

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
