"""Operators of models; sizes are numbers or columns.

A column has one size per design point or per batch composition, so that a single operator list
prices a thousand iterations in one vectorized call. All columns of one list broadcast together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.workload.precision import BYTES

Column = float | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Launched:
    """Fields of every operator: name, precision of the numbers, number of runs."""

    name: str
    dtype: str = "fp16"
    repeat: float = 1


@dataclass(frozen=True, kw_only=True)
class Gemm(Launched):
    """`out[batch, m, n] = in[batch, m, k] @ w[batch, k, n]`; `batch` 1 is a linear layer.

    `dtype` is the precision of the multiplication.
    """

    m: Column
    n: Column
    k: Column
    batch: Column = 1.0
    weight_dtype: str = ""  # of the stored weights, if narrower (w4a16 ...)


@dataclass(frozen=True, kw_only=True)
class GroupedGemm(Launched):
    """The expert layers of a mixture: `tokens` rows routed to `top_k` of `experts` on this GPU."""

    tokens: Column
    n: Column
    k: Column
    experts: int
    top_k: float
    weight_dtype: str = ""  # of the stored weights, if narrower
    width: float = 0.0  # of an expert's slice, for which libraries tune tiles; 0: unknown
    ranks: float = 1.0  # expert-parallel GPUs; kernels walk over the rows of all of them
    received: Column | None = None  # tokens that DeepEP brought to this GPU; None: all are gathered
    masked_tokens: float = 0.0  # up to so many tokens every expert has a buffer of its own

    @property
    def has_narrow_weights(self) -> bool:
        """Whether weights have fewer bits than their multiplication."""
        return BYTES[self.weight_dtype or self.dtype] < BYTES[self.dtype]

    @property
    def has_widened_weights(self) -> bool:
        """Whether 8-bit weights are multiplied in 16 bits."""
        return self.has_narrow_weights and BYTES[self.weight_dtype] > BYTES["int4"]


def active_experts(grouped: GroupedGemm) -> NDArray[np.float64]:
    """Return the mean number of activated experts.

    `top_k` may exceed `experts` where the tokens of several GPUs meet on one GPU; then all experts
    are activated.

    >>> mixture = GroupedGemm(name="up", tokens=1.0, n=1, k=1, experts=8, top_k=2.0)
    >>> float(active_experts(mixture))
    2.0
    """
    tokens = np.asarray(grouped.tokens, np.float64)
    probability = min(1.0, grouped.top_k / grouped.experts)
    activated = grouped.experts * (1.0 - (1.0 - probability) ** tokens)
    return np.maximum(activated, np.finfo(np.float64).tiny)


@dataclass(frozen=True, kw_only=True)
class Attention(Launched):
    """Scores, softmax and weighted sum in one kernel (flash attention), on this GPU's heads.

    A batch of requests of different lengths is described by sums over its requests.
    """

    phase: str  # "prefill" (compute heavy), "decode" (one query token per request), "mixed"
    requests: Column
    query_tokens: Column  # sum of new tokens
    pairs: Column  # sum of query-key pairs scored: c * past + c * (c + 1) / 2 for a causal chunk c
    kv_tokens: Column  # sum of keys read: past + c
    heads: float
    kv_heads: float
    head_dim: float
    kv_dtype: str = "fp16"
    window: Column = 0.0  # of a sliding window, in keys; 0: none
    context_tokens: Column = 0.0  # all cached tokens of the decodes; 0: no window or list
    split_heads: Column = 0.0  # KV heads by which a library splits keys, if more than `kv_heads`
    latent: bool = False  # keys and values of all heads come from one latent per token (MLA)
    decodes: Column = 0.0  # requests of a mixed launch with a single new token
    decode_kv_tokens: Column = 0.0  # keys of a mixed launch that its decodes read
    sinks: bool = False  # attention sinks: softmax has one more logit per head
    listed: bool = False  # every query has its own list of keys, gathered one by one


@dataclass(frozen=True, kw_only=True)
class Norm(Launched):
    """Layer or RMS norm over `cols` of `rows` rows; `softmax` is priced by the same traffic."""

    rows: Column
    cols: Column
    kind: str = "rms_norm"  # rms_norm, layer_norm, softmax


@dataclass(frozen=True, kw_only=True)
class Elementwise(Launched):
    """A fused chain of pointwise operations: `reads` + `writes` numbers moved per element."""

    elements: Column
    reads: float = 1.0
    writes: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Embedding(Launched):
    """Rows of a table gathered by index."""

    rows: Column
    cols: Column


@dataclass(frozen=True, kw_only=True)
class CausalConvolution(Launched):
    """The short convolution before a state: each channel mixes its last four tokens."""

    phase: str  # prefill or decode
    requests: Column
    tokens: Column  # of all requests
    channels: Column
    rule: str = "delta"  # of the state behind it
    in_loop: bool = False  # launched again and again: L2 keeps what fits
    dtype: str = "bf16"


STATE_CHUNK = 64.0
"""Tokens of a prompt between two states, when chunked (Dao and Gu, 2024; Yang et al., 2024)."""


@dataclass(frozen=True, kw_only=True)
class StateUpdate(Launched):
    """Updates of a recurrent matrix state: in chunks for a prompt, token by token in decode."""

    phase: str  # prefill or decode
    requests: Column
    tokens: Column  # of all requests
    key_heads: Column
    value_heads: Column
    key_dim: float = 128.0
    value_dim: float = 128.0
    rule: str = "delta"  # gated delta rule, kda (a gate per key number), or ssd of Mamba-2
    in_loop: bool = False  # launched again and again: L2 keeps what fits
    dtype: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class IndexScores(Launched):
    """Scores of query-key pairs by a few small heads, summed over heads (DeepSeek-V3.2, 2025)."""

    phase: str  # prefill: tiles of queries share keys; decode: every query reads its own keys
    requests: Column
    query_tokens: Column
    pairs: Column
    kv_tokens: Column
    heads: float
    head_dim: float
    block: float = 1.0  # neighboring keys whose best score is kept
    in_loop: bool = False  # launched again and again: L2 keeps what fits


@dataclass(frozen=True, kw_only=True)
class IndexChoice(Launched):
    """The `top_k` best-scored keys of each query; with fewer keys nothing is scored again."""

    requests: Column
    query_tokens: Column
    pairs: Column
    kv_tokens: Column
    top_k: Column
    dtype: str = "fp32"
    in_loop: bool = False  # launched again and again: L2 keeps what fits


@dataclass(frozen=True, kw_only=True)
class StreamMixing(Launched):
    """Residual streams of a block, mixed by weights of the token (DeepSeek-V4's hyper-connections).

    "pre" computes the weights and collects the streams to the block's input; "post" adds the
    block's output to the mixed streams.
    """

    phase: str
    tokens: Column
    hidden: Column
    streams: Column
    in_loop: bool = False  # launched again and again: L2 keeps what fits


@dataclass(frozen=True, kw_only=True)
class Quantisation(Launched):
    """Quantization of numbers; `scan` is the search for the scale before it."""

    rows: Column
    cols: Column
    to: str = "fp8"
    scan: bool = False
    dtype: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class EncoderAttention(Launched):
    """Bidirectional attention within each request, as in vision transformers."""

    requests: Column
    tokens: Column  # of all requests
    heads: Column
    head_dim: Column
    dtype: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class Convolution(Launched):
    """A square 2-D convolution over `batch` square images."""

    batch: Column
    in_channels: Column
    out_channels: Column
    kernel_size: Column
    input_size: Column
    stride: Column = 1.0
    padding: Column = 0.0
    dtype: str = "fp32"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Ranks exchange `size_bytes` (the full per-rank buffer)."""

    name: str
    kind: str  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv
    size_bytes: Column
    ranks: int
    repeat: float = 1


@dataclass(frozen=True, kw_only=True)
class ExpertExchange(Collective):
    """Dispatch or combine of expert parallelism; `size_bytes` is one copy of a rank's tokens."""

    tokens: Column  # of a rank
    experts: int
    top_k: int
    groups: int = 1  # of neighboring experts
    chosen: int = 1  # groups that the experts of a token belong to


Compute = (
    Gemm
    | GroupedGemm
    | Attention
    | EncoderAttention
    | Norm
    | Elementwise
    | Embedding
    | Quantisation
    | Convolution
    | CausalConvolution
    | StateUpdate
    | IndexScores
    | IndexChoice
    | StreamMixing
)
Operator = Compute | Collective


def positions_alike(
    kernels: Sequence[Compute], varying: Callable[[Compute], set[str]]
) -> list[list[int]]:
    """Return groups of positions of kernels of equal type that differ only in varying fields."""
    groups: dict[Any, list[int]] = {}
    for position, kernel in enumerate(kernels):
        free = varying(kernel)
        shared = tuple((name, value) for name, value in vars(kernel).items() if name not in free)
        groups.setdefault((type(kernel), shared), []).append(position)
    return list(groups.values())
