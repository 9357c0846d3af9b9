"""A feed-forward block widens every token and narrows it again; a mixture does so in its experts.

Tensor parallelism cuts every expert's width, so each GPU holds a slice of all experts; expert
parallelism deals out whole experts. `tokens` are those of one group of ranks; where several groups
attend on their own, the experts see the tokens of all. All ranks wait for the one whose experts
were chosen most.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.parallelism import Parallelism, Stage
from simulators.workload.operators import Column, Compute, Elementwise, Gemm, GroupedGemm
from simulators.workload.precision import Precision


def feed_forward(
    model: LanguageModel, cut: Parallelism, part: Stage, tokens: Column, how: Precision
) -> tuple[Compute, ...]:
    """Return the feed-forward blocks of a stage, dense layers first."""
    dense = _block("ffn", model, model.ffn / cut.tp, tokens, how, part.dense_layers)
    if not part.expert_layers:
        return dense
    mixture = _mixture(model, cut, tokens, how, part.expert_layers)
    if model.shared_experts:
        width = model.shared_experts * model.expert_ffn / cut.tp
        mixture += _block("shared_expert", model, width, tokens, how, part.expert_layers)
    return (dense if part.dense_layers else ()) + mixture


def _block(
    name: str, model: LanguageModel, width: float, tokens: Column, how: Precision, repeat: int
) -> tuple[Compute, ...]:
    """Return up projection (with the gate, if any), activation and down projection."""
    up = 2 if model.gated_ffn else 1
    return (
        Gemm(
            name=f"{name}_up",
            m=tokens,
            n=up * width,
            k=model.hidden,
            dtype=how.compute,
            weight_dtype=how.weights,
            repeat=repeat,
        ),
        Elementwise(
            name=f"{name}_activation",
            elements=tokens * width,
            reads=float(up),
            dtype=how.activations,
            repeat=repeat,
        ),
        Gemm(
            name=f"{name}_down",
            m=tokens,
            n=model.hidden,
            k=width,
            dtype=how.compute,
            weight_dtype=how.weights,
            repeat=repeat,
        ),
    )


def _mixture(
    model: LanguageModel, cut: Parallelism, tokens: Column, how: Precision, repeat: int
) -> tuple[Compute, ...]:
    """Return routing, the gathering of rows by expert, the experts, and the weighted sum."""
    width, up = model.expert_ffn / cut.expert_tp, 2 if model.gated_ffn else 1
    everywhere = tokens * cut.attention_dp
    everywhere = everywhere * busiest_share(model, cut.ep, everywhere)
    routed = everywhere * model.top_k / cut.ep  # rows of the busiest GPU's experts
    return (
        Gemm(
            name="router",
            m=tokens,
            n=model.experts,
            k=model.hidden,
            dtype=how.activations,
            repeat=repeat,
        ),
        Elementwise(
            name="gather_by_expert",
            elements=routed * model.hidden,
            dtype=how.activations,
            repeat=repeat,
        ),
        _experts("experts_up", model, cut, everywhere, up * width, model.hidden, how, repeat),
        Elementwise(
            name="experts_activation",
            elements=routed * width,
            reads=float(up),
            dtype=how.activations,
            repeat=repeat,
        ),
        _experts("experts_down", model, cut, everywhere, model.hidden, width, how, repeat),
        Elementwise(
            name="weighted_sum",
            elements=tokens * model.hidden,
            reads=float(model.top_k),
            dtype=how.activations,
            repeat=repeat,
        ),
    )


def busiest_share(model: LanguageModel, parts: int, tokens: Column) -> Column:
    """Return the rows of the part of the experts chosen most, over those of the mean part.

    Tokens choose `k` of `E` experts at random, so the rows of a part have a variance of
    `T k (1 - k/E) / parts`, and the largest of several normal numbers is where Blom expects it
    ("Statistical estimates and transformed beta-variables", 1958). Experts that all tokens like
    come on top.

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


def _experts(
    name: str,
    model: LanguageModel,
    cut: Parallelism,
    tokens: Column,
    n: float,
    k: float,
    how: Precision,
    repeat: int,
) -> GroupedGemm:
    return GroupedGemm(
        name=name,
        tokens=tokens,
        n=n,
        k=k,
        experts=model.experts // cut.ep,
        top_k=model.top_k / cut.ep,
        dtype=how.expert_compute or how.compute,
        weight_dtype=how.expert_weights or how.weights,
        repeat=repeat,
    )
