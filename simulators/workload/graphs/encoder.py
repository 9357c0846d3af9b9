"""Encoders of text: every token sees all others, and norms stand after the residuals.

BERT (Devlin et al., 2019) and its kin, with attention in one kernel, as implementations since 2023
run them. `classic.py` has the same model with its scores in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.workload.graphs.blocks import feed_forward, self_attention
from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch


@dataclass(frozen=True, kw_only=True)
class Encoder(ModelFamily):
    """A post-norm encoder with a pooler."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    max_context: int
    segments: int = 2
    classes: int = 0  # of a classifier on the pooled token; 0: none

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of sequences; the length is their tokens."""
        g, batch, length = Sketch(self.name), load.batch, load.length or self.max_context
        rows = {"tokens": self.vocab, "positions": self.max_context, "segments": self.segments}
        found = [
            g.embedding(g.input((batch, length), name), (count, self.hidden), name=name)
            for name, count in rows.items()
            if count
        ]
        x = found[0]
        for other in found[1:]:
            x = g.add(x, other)
        x = g.pointwise("dropout", g.norm(x))
        with g.layers(self.layers):
            seen = g.pointwise("dropout", self_attention(g, x, self.heads))
            y = g.norm(g.add(seen, x))
            x = g.norm(g.add(g.pointwise("dropout", feed_forward(g, y, self.ffn)), y))
        first = g.part(x, (batch, self.hidden))
        pooled = g.pointwise("tanh", g.linear(first, self.hidden, name="pooler"))
        if self.classes:
            g.linear(pooled, self.classes, name="classifier")
        return g.graph()
