"""Decoders of 2018 to 2022 whose attention writes all scores to memory, one kernel per operator.

OPT (Zhang et al., 2022) in the operators of Hugging Face's PyTorch code: separate projections,
heads copied before each batched product, explicit mask, softmax and weighted sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch


@dataclass(frozen=True, kw_only=True)
class UnfusedTransformer(ModelFamily):
    """The shape of a transformer with explicit attention scores."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    head_dim: int = 0  # 0: hidden / heads
    max_context: int = 0
    source: str = ""

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of sequences of `load.length` tokens."""
        return opt_graph(self, load.batch, load.length or self.max_context)

    @property
    def attention_width(self) -> int:
        """Numbers in one token's queries, over all heads."""
        return self.heads * (self.head_dim or self.hidden // self.heads)


def opt_graph(model: UnfusedTransformer, batch: int, length: int, tp: int = 1) -> Graph:
    """Return OPT's graph on one of `tp` ranks: pre-norm, heads copied, scores clamped from below.

    >>> opt = UnfusedTransformer(name="opt", layers=2, hidden=8, heads=2, ffn=32, vocab=100)
    >>> len([n for n in opt_graph(opt, 2, 16).nodes if n.kind == "linear"])
    7
    """
    g = Sketch(model.name)
    x = embed_tokens(g, model, batch, length)
    mask = g.input((batch, 1, length, length), "mask")
    width, heads = model.attention_width // tp, model.heads // tp
    with g.layers(model.layers):
        y = g.norm(x)
        q = g.pointwise("scale", g.linear(y, width, name="q"))
        k, v = g.linear(y, width, name="k"), g.linear(y, width, name="v")
        q, k, v = (
            g.copy(
                (g.part(t, (batch, heads, length, width // heads)),), per_head_shape(g, t, heads)
            )
            for t in (q, k, v)
        )
        k = g.view(k, (batch, heads, width // heads, length))
        scores = g.pointwise("maximum", g.add(g.matmul(q, k), mask))
        seen = g.matmul(g.softmax(scores), v)
        seen = g.copy((seen,), (batch, length, width))
        x = g.add(g.pointwise("dropout", g.linear(seen, model.hidden, name="out")), x)
        up = g.relu(g.linear(g.norm(x), model.ffn // tp, name="up"))
        x = g.add(g.pointwise("dropout", g.linear(up, model.hidden, name="down")), x)
    g.linear(g.norm(x), model.vocab // tp, bias=False, tied=True, name="lm_head")
    return g.graph()


def embed_tokens(
    g: Sketch, model: UnfusedTransformer, batch: int, length: int, *, types: bool = False
) -> int:
    """Draw the sum of token, position and, for BERT, segment embeddings."""
    rows = model.max_context or length
    x = g.embedding(g.input((batch, length), "ids"), (model.vocab, model.hidden), name="tokens")
    if types:
        kinds = g.input((batch, length), "types")
        x = g.add(x, g.embedding(kinds, (2, model.hidden), name="types"))
    places = g.input((1, length), "positions")
    return g.add(x, g.embedding(places, (rows, model.hidden), name="positions"))


def per_head_shape(g: Sketch, x: int, heads: int) -> tuple[int, int, int, int]:
    """Return the shape [batch, heads, length, width per head] of a tensor of tokens."""
    batch, length, width = g.shape(x)
    return batch, heads, length, width // heads
