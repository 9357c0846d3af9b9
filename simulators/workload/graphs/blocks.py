"""Blocks shared by model families: fused attention, feed-forward, residuals.

These are the operators of implementations since 2023: scores never reach memory (Dao et al.,
FlashAttention, 2022), and an activation is one kernel.
"""

from __future__ import annotations

from simulators.workload.graphs.graph import Sketch


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

    By default there are as many key and value heads as query heads, and the hidden width is divided
    among the heads. Queries and keys may be normalised per head, or over all heads
    at once.
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
