"""Memory of training: what papers state for their configurations."""

from __future__ import annotations

import pytest

from simulators.workload.graphs.families import draw
from simulators.workload.graphs.graph import (
    Graph,
    Load,
    Sketch,
    kept_bytes,
    peak_bytes,
    training_footprint,
)

# Korthikanti et al., Reducing activation recomputation (2022), table 3: heads, hidden, sequence and
# micro-batch of the 22B, 175B, 530B and 1T models.
MEGATRON = [
    (64, 6144, 2048, 4),
    (96, 12_288, 2048, 1),
    (128, 20_480, 2048, 1),
    (160, 25_600, 2048, 1),
]


@pytest.mark.parametrize(("heads", "hidden", "length", "batch"), MEGATRON)
def test_activation_bytes_per_layer_match_the_megatron_paper(
    heads: int, hidden: int, length: int, batch: int
) -> None:
    paper = length * batch * hidden * (34 + 5 * heads * length / hidden)  # its equation 1
    assert kept_bytes(megatron_layer(heads, hidden, length, batch), "fp16") == pytest.approx(
        paper, rel=0.05
    )


def megatron_layer(heads: int, hidden: int, length: int, batch: int) -> Graph:
    """A layer as the paper draws it: scores in memory, the mask fused with the softmax."""
    g = Sketch("layer")
    x = g.pointwise("scale", g.input((batch, length, hidden)))
    width = hidden // heads
    qkv = g.linear(g.norm(x), 3 * hidden)
    q, k, v = (g.copy((g.part(qkv, s),), s) for s in 3 * [(batch, heads, length, width)])
    scores = g.matmul(q, g.view(k, (batch, heads, width, length)))
    seen = g.matmul(g.pointwise("dropout", g.softmax(scores)), v)
    out = g.linear(g.copy((seen,), (batch, length, hidden)), hidden)
    x = g.add(x, g.pointwise("dropout", out))
    up = g.pointwise("gelu", g.linear(g.norm(x), 4 * hidden))
    g.add(x, g.pointwise("dropout", g.linear(up, hidden)))
    return g.graph()


def test_mixed_precision_adam_takes_sixteen_bytes_per_weight() -> None:
    # Rajbhandari et al., ZeRO (2020), table 1: 120 GB for 7.5e9 parameters on one GPU.
    assert training_footprint(7.5e9, "fp16").total == 120e9
    assert training_footprint(1e9, "bf16").total == 16e9
    assert training_footprint(1e9, "fp32").total == 16e9  # no copy, but wider weights


def test_training_stores_more_activations_than_inference() -> None:
    graph = draw("resnet50", Load(batch=4))
    assert kept_bytes(graph, "fp16") > 3 * peak_bytes(graph, "fp16")


def test_operator_chain_holds_two_results_at_once() -> None:
    g = Sketch("chain")
    x = g.input((1, 100))
    for _ in range(9):
        x = g.relu(x)
    assert peak_bytes(g.graph(), "fp32") == 2 * 100 * 4
