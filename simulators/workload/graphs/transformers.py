"""Transformers as graphs: decoder language models, BERT encoders, OPT, and shared blocks.

Blocks and decoders are those of implementations since 2023 (Megatron Core, PyTorch): scores never
reach memory (Dao et al., FlashAttention, 2022), an activation is one kernel, and experts are one
grouped product per matrix. Decoders are for training and operator-by-operator execution; inference
uses `transformer.py`, with columns as sizes. Encoders are post-norm (BERT, Devlin et al., 2019).

OPT (Zhang et al., 2022) has the operators of Hugging Face's PyTorch code of 2018 to 2022: separate
projections, heads copied before each batched product, explicit mask, softmax and weighted sum, with
all scores in memory and one kernel per operator.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch


def self_attention(
    g: Sketch,
    x: int,
    heads: int,
    *,
    kv_heads: int = 0,
    head_dim: int = 0,
    causal: bool = False,
    bias: bool = True,
    out_bias: bool = True,
    rotary: bool = False,
    qk_norm: bool = False,
    whole_qk_norm: bool = False,
) -> int:
    """Draw attention of [batch, length, hidden] to itself, without norm and residual.

    By default there are as many KV heads as query heads, and the hidden width is split over the
    heads. Queries and keys may be normalized per head, or over all heads at once.
    """
    hidden = g.shape(x)[2]
    width, kv = head_dim or hidden // heads, kv_heads or heads
    qkv = g.linear(x, (heads + 2 * kv) * width, bias=bias, name="qkv")
    q, k, v = (_heads(g, qkv, n, width) for n in (heads, kv, kv))
    if whole_qk_norm:
        q, k = (_normed_whole(g, one) for one in (q, k))
    elif qk_norm:
        q, k = g.norm(q, "rms_norm"), g.norm(k, "rms_norm")
    if rotary:
        q, k = g.pointwise("scale", q), g.pointwise("scale", k)
    return _out(g, g.attention(q, k, v, causal=causal), hidden, bias=out_bias)


def cross_attention(g: Sketch, x: int, memory: int, heads: int) -> int:
    """Draw attention of [batch, length, hidden] to another sequence."""
    hidden = g.shape(x)[2]
    q = g.linear(x, hidden, bias=False, name="q")
    k, v = (g.linear(memory, hidden, bias=False, name=n) for n in ("k", "v"))
    q, k, v = (_heads(g, t, heads, hidden // heads) for t in (q, k, v))
    return _out(g, g.attention(q, k, v, causal=False), hidden, bias=True)


def feed_forward(
    g: Sketch, x: int, width: int, *, kind: str = "gelu", gated: bool = False, bias: bool = True
) -> int:
    """Draw two linear layers with an activation between, or three with a gate."""
    hidden = g.shape(x)[-1]
    if not gated:
        up = g.pointwise(kind, g.linear(x, width, bias=bias, name="up"))
        return g.linear(up, hidden, bias=bias, name="down")
    both = g.linear(x, 2 * width, bias=bias, name="gate_up")
    gate, up = (g.part(both, (*g.shape(x)[:-1], width)) for _ in range(2))
    return g.linear(g.mul(g.pointwise(kind, gate), up), hidden, bias=bias, name="down")


def encoder_layer(g: Sketch, x: int, heads: int, ffn: int, *, causal: bool = False) -> int:
    """Draw a transformer layer with norms before (ViT, CLIP)."""
    x = g.add(x, self_attention(g, g.norm(x), heads, causal=causal))
    return g.add(x, feed_forward(g, g.norm(x), ffn))


def _heads(g: Sketch, x: int, heads: int, width: int) -> int:
    """Draw a slice of a projection as [batch, length, heads, width]."""
    batch, length, *_ = g.shape(x)
    return g.part(x, (batch, length, heads, width))


def _normed_whole(g: Sketch, x: int) -> int:
    """Draw the norm of [batch, length, heads, width] over all heads of a token."""
    batch, length, heads, width = g.shape(x)
    flat = g.view(x, (batch, length, heads * width))
    return g.view(g.norm(flat, "rms_norm"), (batch, length, heads, width))


def _out(g: Sketch, seen: int, hidden: int, *, bias: bool) -> int:
    batch, length, heads, width = g.shape(seen)
    joined = g.view(seen, (batch, length, heads * width))
    return g.linear(joined, hidden, bias=bias, name="out")


def decoder_graph(model: LanguageModel, load: Load) -> Graph:
    """Return the graph of a batch of sequences, with logits of every token.

    Raises:
        UserError: the model has a part that is not drawn, such as a recurrent state.

    >>> from simulators.catalog.model import load_model
    >>> gpt2 = load_model("gpt2")
    >>> decoder_graph(gpt2, Load(batch=1, length=8)).parameters == gpt2.parameters
    True
    """
    is_drawn = not (model.has_states or model.index_top_k or model.attention_gate)
    if not is_drawn or model.expert_hidden or model.windowed != model:
        words = "a state, an indexer, a gate of attention, latent experts or heads of two sizes"
        raise UserError(f"model '{model.name}' has {words}, whose graph is not drawn")
    g, batch, length = Sketch(model.name), load.batch, load.length or model.max_context
    x = g.embedding(g.input((batch, length), "ids"), (model.vocab, model.hidden), name="tokens")
    if model.learned_positions:
        places, table = g.input((1, length), "positions"), (model.learned_positions, model.hidden)
        x = g.add(x, g.embedding(places, table, name="positions"))
    dense = model.layers - model.expert_layers
    for count, draw in ((dense, _dense), (model.expert_layers, _mixture)):
        if count:
            with g.layers(count, "expert_layer" if draw is _mixture else "layer"):
                x = g.add(x, _attention(g, model, g.norm(x, model.norm)))
                x = g.add(x, draw(g, model, g.norm(x, model.norm)))
    x = g.norm(x, model.norm)
    g.linear(x, model.vocab, bias=False, tied=model.tied_embeddings, name="lm_head")
    return g.graph()


def _attention(g: Sketch, model: LanguageModel, x: int) -> int:
    if model.is_latent:
        return _latent_attention(g, model, x)
    return self_attention(
        g,
        x,
        model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        causal=True,
        bias=model.biases or model.qkv_biases,
        out_bias=model.biases,
        rotary=not model.learned_positions,
        qk_norm=model.qk_norm,
        whole_qk_norm=model.whole_qk_norm,
    )


def _latent_attention(g: Sketch, model: LanguageModel, x: int) -> int:
    batch, length, hidden = g.shape(x)
    width = model.qk_nope_head_dim + model.qk_rope_head_dim
    latent = g.linear(x, model.kv_lora_rank + model.qk_rope_head_dim, bias=False, name="kv_down")
    narrow = g.norm(g.part(latent, (batch, length, model.kv_lora_rank)), "rms_norm")
    up = model.heads * (model.qk_nope_head_dim + model.v_head_dim)
    keys_values = g.linear(narrow, up, bias=False, name="kv_up")
    q = x
    if model.q_lora_rank:
        q = g.norm(g.linear(x, model.q_lora_rank, bias=False, name="q_down"), "rms_norm")
    q = g.linear(q, model.heads * width, bias=False, name="q_up")
    q = g.pointwise("scale", g.part(q, (batch, length, model.heads, width)))
    k = g.copy((keys_values,), (batch, length, model.heads, width), name="keys")
    v = g.part(keys_values, (batch, length, model.heads, model.v_head_dim))
    seen = g.attention(q, k, v, causal=True)
    joined = g.view(seen, (batch, length, model.heads * model.v_head_dim))
    return g.linear(joined, hidden, bias=False, name="out")


def _dense(g: Sketch, model: LanguageModel, x: int) -> int:
    kind = "silu" if model.gated_ffn else "gelu"
    return feed_forward(g, x, model.ffn, kind=kind, gated=model.gated_ffn, bias=model.biases)


def _mixture(g: Sketch, model: LanguageModel, x: int) -> int:
    batch, length, hidden = g.shape(x)
    probabilities = g.softmax(g.linear(x, model.experts, bias=False, name="router"))
    rows = batch * length * model.top_k
    mine = g.node("gather", (x,), (rows, hidden), name="dispatch")
    wide = (2 if model.gated_ffn else 1) * model.expert_ffn
    up = _grouped(g, mine, model, wide)
    if model.gated_ffn:
        gate, value = (g.part(up, (rows, model.expert_ffn)) for _ in range(2))
        up = g.mul(g.pointwise("silu", gate), value)
    else:
        up = g.pointwise("gelu", up)
    down = _grouped(g, up, model, hidden)
    weighted = g.mul(down, g.part(probabilities, (rows, 1)))
    out = g.node("scatter", (x, weighted), (batch, length, hidden), name="combine")
    if model.shared_experts:
        width = model.shared_width
        kind = "silu" if model.gated_ffn else "gelu"
        shared = feed_forward(g, x, width, kind=kind, gated=model.gated_ffn, bias=False)
        out = g.add(out, shared)
    return out


def _grouped(g: Sketch, x: int, model: LanguageModel, n: int) -> int:
    rows, k = g.shape(x)
    weights = ((model.experts, n, k),)
    return g.node(
        "grouped_linear", (x,), (rows, n), weights=weights, groups=model.top_k, name="experts"
    )


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
