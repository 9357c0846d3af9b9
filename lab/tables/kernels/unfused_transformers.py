"""BERT, GPT-2 and Switch as Hugging Face's PyTorch code runs them, one kernel per operator.

BERT (Devlin et al., 2019), GPT-2 and GPT-3 (Radford et al., 2019; Brown et al., 2020) and Switch
(Fedus et al., 2021): scores and probabilities are written to memory, GPT's activation is a chain
of eight pointwise kernels, and operands of batched products are copied into the order of heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.workload.graphs.graph import Graph, Sketch
from simulators.workload.graphs.unfused_transformers import (
    UnfusedTransformer,
    embed_tokens,
    opt_graph,
    per_head_shape,
)


@dataclass(frozen=True, kw_only=True)
class TimedTransformer(UnfusedTransformer):
    """The shape of a transformer whose implementation is `code`: bert, gpt2, opt or switch."""

    code: str
    experts: int = 0
    expert_capacity: int = 0
    has_language_head: bool = True  # BERT: else a classifier of whole sequences


def unfused_graph(model: TimedTransformer, batch: int, length: int, tp: int = 1) -> Graph:
    """Return the graph of a whole model over `batch` sequences of `length` tokens.

    >>> sizes = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 32, "vocab": 100}
    >>> bert = TimedTransformer(name="bert", code="bert", **sizes)
    >>> len([n for n in unfused_graph(bert, 2, 16).nodes if n.kind == "linear"])
    10
    """
    draw = {"bert": _bert, "gpt2": _gpt2, "opt": opt_graph, "switch": _switch}[model.code]
    return draw(model, batch, length, tp)


def _bert(model: TimedTransformer, batch: int, length: int, tp: int) -> Graph:
    """Norms after the residual; a pooler and a masked-language head."""
    g = Sketch(model.name)
    x = embed_tokens(g, model, batch, length, types=True)
    x = g.pointwise("dropout", g.norm(x))
    mask = g.input((batch, 1, 1, length), "mask")
    with g.layers(model.layers):
        q, k, v = (g.linear(x, model.attention_width // tp, name=n) for n in ("q", "k", "v"))
        scores = g.add(g.pointwise("scale", _scores(g, model, q, k, tp)), mask)
        seen = _weighted(g, model, g.pointwise("dropout", g.softmax(scores)), v, tp)
        out = g.pointwise("dropout", g.linear(seen, model.hidden, name="out"))
        y = g.norm(g.add(out, x))
        up = g.pointwise("gelu", g.linear(y, model.ffn // tp, name="up"))
        down = g.pointwise("dropout", g.linear(up, model.hidden, name="down"))
        x = g.norm(g.add(down, y))
    first = g.part(x, (batch, model.hidden))
    pooled = g.pointwise("tanh", g.linear(first, model.hidden, name="pooler"))
    g.linear(pooled, 2, name="classifier")
    if not model.has_language_head:
        return g.graph()
    y = g.norm(g.pointwise("gelu", g.linear(x, model.hidden, name="transform")))
    g.linear(y, model.vocab // tp, tied=True, name="lm_head")
    return g.graph()


def _gpt2(model: TimedTransformer, batch: int, length: int, tp: int) -> Graph:
    """Norms before; one projection for queries, keys and values; GELU by its formula."""
    g = Sketch(model.name)
    x = g.pointwise("dropout", embed_tokens(g, model, batch, length))
    mask = g.input((1, 1, length, length), "mask")
    width = model.attention_width // tp
    with g.layers(model.layers):
        qkv = g.linear(g.norm(x), 3 * width, name="qkv")
        q, k, v = (g.part(qkv, (batch, length, width), name=n) for n in ("q", "k", "v"))
        scores = g.pointwise("mask", g.pointwise("scale", _scores(g, model, q, k, tp)), mask)
        seen = _weighted(g, model, g.pointwise("dropout", g.softmax(scores)), v, tp)
        x = g.add(g.pointwise("dropout", g.linear(seen, model.hidden, name="out")), x)
        up = _gelu_by_formula(g, g.linear(g.norm(x), model.ffn // tp, name="up"))
        x = g.add(g.pointwise("dropout", g.linear(up, model.hidden, name="down")), x)
    g.linear(g.norm(x), model.vocab // tp, bias=False, tied=True, name="lm_head")
    return g.graph()


def _switch(model: TimedTransformer, batch: int, length: int, tp: int) -> Graph:
    """Encoder and decoder of T5; every other feed-forward block has experts, one a token."""
    g = Sketch(model.name)
    ids = g.input((batch, length), "ids")
    table = (model.vocab // tp, model.hidden)
    bias = g.input((batch, model.heads // tp, length, length), "position_bias")
    x = g.pointwise("dropout", g.embedding(ids, table, name="tokens"))
    with g.layers(model.layers // 2, "encoder"):
        for sparse in (False, True):
            x = _t5_attention(g, model, x, x, bias, tp)
            x = _t5_ffn(g, model, x, tp, sparse=sparse)
    memory = g.pointwise("dropout", _t5_norm(g, x))
    y = g.embedding(g.input((batch, length), "ids"), table, name="decoder_tokens")
    y = g.pointwise("dropout", y)
    with g.layers(model.layers // 2, "decoder"):
        for sparse in (False, True):
            y = _t5_attention(g, model, y, y, bias, tp)
            y = _t5_attention(g, model, y, memory, bias, tp)
            y = _t5_ffn(g, model, y, tp, sparse=sparse)
    y = g.pointwise("scale", g.pointwise("dropout", _t5_norm(g, y)))
    g.linear(y, model.vocab // tp, bias=False, tied=True, name="lm_head")
    return g.graph()


def _heads_of(g: Sketch, x: int, heads: int) -> int:
    """Draw the heads of [batch, length, width]; a batch of several is copied to be multiplied."""
    part = g.part(x, per_head_shape(g, x, heads))
    return g.copy((part,), g.shape(part)) if g.shape(x)[0] > 1 else part


def _scores(g: Sketch, model: TimedTransformer, q: int, k: int, tp: int) -> int:
    queries, keys = (_heads_of(g, x, model.heads // tp) for x in (q, k))
    batch, heads, length, width = g.shape(keys)
    return g.matmul(queries, g.view(keys, (batch, heads, width, length)), name="scores")


def _weighted(g: Sketch, model: TimedTransformer, probabilities: int, v: int, tp: int) -> int:
    """Draw the weighted sum of values, and its copy back to one row per token."""
    seen = g.matmul(probabilities, _heads_of(g, v, model.heads // tp), name="weighted")
    batch, heads, length, width = g.shape(seen)
    return g.copy((seen,), (batch, length, heads * width))


def _gelu_by_formula(g: Sketch, x: int) -> int:
    """Draw `0.5 x (1 + tanh(c (x + 0.044715 x^3)))` in eight kernels."""
    half = g.pointwise("scale", x)
    cubed = g.pointwise("scale", g.pointwise("pow", x))
    inner = g.pointwise("scale", g.add(x, cubed))
    return g.mul(half, g.pointwise("shift", g.pointwise("tanh", inner)))


def _t5_norm(g: Sketch, x: int) -> int:
    """Draw T5's RMS norm: square, mean, root, two products."""
    root = g.pointwise("rsqrt", g.mean(g.pointwise("pow", x), (*g.shape(x)[:-1], 1)))
    weight = g.node("weight", (), (g.shape(x)[-1],), weights=((g.shape(x)[-1],),))
    return g.mul(g.mul(x, root), weight)


def _t5_attention(
    g: Sketch, model: TimedTransformer, x: int, memory: int, bias: int, tp: int
) -> int:
    """Draw attention of `x` to itself or to an encoder's result."""
    y = _t5_norm(g, x)
    width = model.attention_width // tp
    source = y if memory == x else memory
    q = g.linear(y, width, bias=False, name="q")
    k, v = (g.linear(source, width, bias=False, name=n) for n in ("k", "v"))
    scores = g.add(_scores(g, model, q, k, tp), bias)
    seen = _weighted(g, model, g.pointwise("dropout", g.softmax(scores)), v, tp)
    out = g.linear(seen, model.hidden, bias=False, name="out")
    return g.add(x, g.pointwise("dropout", out))


def _t5_ffn(g: Sketch, model: TimedTransformer, x: int, tp: int, *, sparse: bool) -> int:
    """Draw a feed-forward block; of a mixture, as many rows as the capacity of its experts."""
    y = _t5_norm(g, x)
    if sparse:
        y = _switch_experts(g, model, y, tp)
    else:
        up = g.pointwise("dropout", g.relu(g.linear(y, model.ffn // tp, bias=False, name="up")))
        y = g.linear(up, model.hidden, bias=False, name="down")
    return g.add(x, g.pointwise("dropout", y))


def _switch_experts(g: Sketch, model: TimedTransformer, y: int, tp: int) -> int:
    """Draw a router and the experts in turn, each over as many rows as its capacity."""
    batch, length, hidden = g.shape(y)
    chances = g.softmax(g.linear(y, model.experts, bias=False, name="router"))
    joined = g.copy((y,), g.shape(y), name="next_states")
    rows = batch * min(length, model.expert_capacity)
    for _ in range(model.experts):
        mine = g.node("gather", (y,), (rows, hidden), waits=True)
        up = g.relu(g.linear(mine, model.ffn // tp, bias=False, name="expert_up"))
        down = g.linear(g.pointwise("dropout", up), hidden, bias=False, name="expert_down")
        joined = g.node("scatter", (joined, down), (batch, length, hidden), waits=True)
    return g.mul(joined, g.part(chances, (batch, length, 1)))
