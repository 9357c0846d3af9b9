"""Language models as operator graphs, for training and operator-by-operator execution.

Grouped and latent keys, gates, experts with shared ones, norms and biases are as the catalog states
them. Attention is one kernel and experts are one grouped product per matrix, as in Megatron Core
and PyTorch since 2023. Inference goes through `transformer.py`, whose sizes are columns.
"""

from __future__ import annotations

from simulators.catalog.model import LanguageModel
from simulators.core.errors import UserError
from simulators.workload.graphs.blocks import feed_forward, self_attention
from simulators.workload.graphs.graph import Graph, Load, Sketch


def decoder_graph(model: LanguageModel, load: Load) -> Graph:
    """Return the graph of sequences of so many tokens, logits of every token included.

    Raises:
        UserError: some layers keep a state instead of keys and values, or an indexer chooses keys;
            neither is drawn.

    >>> from simulators.catalog.model import load_model
    >>> gpt2 = load_model("gpt2")
    >>> decoder_graph(gpt2, Load(batch=1, length=8)).parameters == gpt2.parameters
    True
    """
    if model.has_states:
        raise UserError(f"model '{model.name}' has layers with a state, whose graph is not drawn")
    if model.index_top_k:
        raise UserError(f"model '{model.name}' has an indexer of keys, whose graph is not drawn")
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
    """Draw attention whose queries, keys and values come from narrow latents."""
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
    """Draw a router, routed experts and shared experts."""
    batch, length, hidden = g.shape(x)
    chances = g.softmax(g.linear(x, model.experts, bias=False, name="router"))
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
    weighted = g.mul(down, g.part(chances, (rows, 1)))
    out = g.node("scatter", (x, weighted), (batch, length, hidden), name="combine")
    if model.shared_experts:
        width = model.shared_experts * model.expert_ffn
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
