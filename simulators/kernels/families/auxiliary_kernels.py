"""State convolutions and updates, encoder attention, quantization and embedding.

All have one formula, with up to seven constants per GPU, framework and kernel, and trees:

    lost = f^6 / (1 + f^6),  f = bytes / (l2_share L2)
    memory = bytes (lost + (1 - lost) / l2_speed) / (bandwidth b)
    t = start + ((flops / (compute peak))^4 + memory^4)^(1/4)
              + blocks block_clocks / (SMs clock) + longest chain_clocks / clock

States and convolutions were timed in loops of one launch, which find their inputs in L2 if these
fit. In an engine the other layers replace them, so `lost` is 1 there, as it is in other kernels.

`blocks` start one after another, such as the heads of a request, or the numbers that an embedding
gathers (one or two clocks of an SM each in PyTorch). `longest` is the number of tokens that one
block processes in order, because each state depends on the previous state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu
from simulators.core.jit import Floats
from simulators.kernels.corrections import corrected
from simulators.kernels.families.family import Entry, OperatorFamily, entry_of, seconds_by
from simulators.kernels.profile import Profile
from simulators.kernels.tiling import four_norm, l2_miss_rate
from simulators.workload import operators as ops
from simulators.workload.operators import STATE_CHUNK, Column, Quantisation
from simulators.workload.precision import BYTES

TAPS = 4.0
"""Width of the causal convolution, in every model so far (Gu and Dao, 2023)."""

INDEX_DTYPE = "fp8"
"""Precision of an indexer's queries and keys."""

STATE_BYTES = 4.0
"""Bytes per number of a state: 32 bits."""

UNMEASURED = {
    "start_s": 3e-6,
    "compute": 0.3,
    "bandwidth": 0.6,
    "block_clocks": 200.0,
    "chain_clocks": 10.0,
}
"""Constants of kernels without a fit, and the start of fits."""

TILE_ROWS = 128.0
"""Rows of a tile of scores: queries times heads (DeepGEMM, `fp8_mqa_logits`)."""

SCALE_BYTES, SCORE_BYTES, PLACE_BYTES = 4.0, 4.0, 4.0
"""Bytes of an indexer key's scale, of a score and of a chosen key's position."""

DIGITS = 32.0
"""Operations per score of a radix choice: bits of a 32-bit number."""

Auxiliary = (
    ops.CausalConvolution
    | ops.StateUpdate
    | Quantisation
    | ops.EncoderAttention
    | ops.Embedding
    | ops.IndexScores
    | ops.IndexChoice
    | ops.StreamMixing
)


@dataclass(frozen=True)
class KernelWork:
    """FLOPs, traffic and blocks of an operator, and the features of trees."""

    flops: Floats
    moved_bytes: Floats
    blocks: Floats
    longest: Floats
    features: Floats  # one per row, in the shape of the columns; none falls when a batch grows
    kept: Floats | float = 0.0  # 1 if L2 keeps what fits from the launch before


def work_of(op: Auxiliary) -> KernelWork:
    """Return FLOPs, traffic and blocks of an operator."""
    return WORK[type(op)](op)


def kernel_of(op: Auxiliary) -> str:
    """Return the name of an operator's kernel in calibrations.

    >>> kernel_of(Quantisation(name="q", rows=1, cols=1))
    'quantise'
    """
    if isinstance(op, ops.CausalConvolution):
        return f"convolution_{op.phase}"
    if isinstance(op, ops.StateUpdate):
        return f"delta_{op.phase}"
    if isinstance(op, ops.IndexScores):
        return f"index_blocks_{op.phase}" if op.block > 1.0 else f"index_scores_{op.phase}"
    if isinstance(op, ops.IndexChoice):
        return "index_choice"
    if isinstance(op, ops.StreamMixing):
        return f"mixing_{op.phase}"
    if isinstance(op, Quantisation):
        return "scan" if op.scan else "quantise"
    return "embedding" if isinstance(op, ops.Embedding) else "encoder"


def auxiliary_seconds(op: Auxiliary, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of one kernel, launch included."""
    entry = _entry(op, gpu, profile)
    if entry is None:
        return fitted_seconds(op, gpu, UNMEASURED)
    return seconds_by(entry, partial(fitted_seconds, op, gpu))


def fitted_seconds(op: Auxiliary, gpu: Gpu, entry: Entry | Mapping[str, float]) -> Floats:
    """Return the seconds by given constants, or by the constants and trees of an entry."""
    work = work_of(op)
    numbers = entry.numbers if isinstance(entry, Entry) else entry
    if isinstance(op, ops.IndexScores) and op.heads == 1.0 and "lone" in numbers:
        numbers = {**numbers, "bandwidth": numbers["bandwidth"] * numbers["lone"]}
    dtype = dtype_on(op, gpu)
    seconds = form_seconds(work, dtype, gpu, numbers)
    if isinstance(entry, Entry) and entry.correction is not None:
        flat = work.features.reshape(len(work.features), -1)
        seconds = corrected(entry.correction, flat, seconds)
    memory_s = _memory_s(work, gpu, numbers)
    return np.maximum(seconds, np.maximum(work.flops / _peak(work, dtype, gpu), memory_s))


def dtype_on(op: Auxiliary, gpu: Gpu) -> str:
    """Return the precision of an operator's arithmetic; indexers multiply in 8 bits if they can."""
    return (
        INDEX_DTYPE
        if isinstance(op, ops.IndexScores) and INDEX_DTYPE in gpu.peak_flops
        else op.dtype
    )


def form_seconds(work: KernelWork, dtype: str, gpu: Gpu, numbers: Mapping[str, float]) -> Floats:
    """Return the seconds by the formula, without trees."""
    compute_s = work.flops / (numbers["compute"] * _peak(work, dtype, gpu))
    memory_s = _memory_s(work, gpu, numbers) / numbers["bandwidth"]
    clocks = work.blocks * numbers["block_clocks"] / gpu.sm_count
    clocks = clocks + work.longest * numbers["chain_clocks"]
    seconds = numbers["start_s"] + four_norm(compute_s, memory_s) + clocks / gpu.clock_hz
    return np.asarray(seconds, np.float64)


def _memory_s(work: KernelWork, gpu: Gpu, numbers: Mapping[str, float]) -> Floats:
    """Return the seconds of the traffic at full bandwidth; L2 is `l2_speed` times as fast."""
    memory_s = work.moved_bytes / gpu.hbm_bytes_per_s
    if "l2_speed" in numbers:
        hit = 1.0 - l2_miss_rate(work.moved_bytes / (numbers["l2_share"] * gpu.l2_bytes))
        memory_s = memory_s * (1.0 - work.kept * hit * (1.0 - 1.0 / numbers["l2_speed"]))
    return np.asarray(memory_s, np.float64)


def _peak(work: KernelWork, dtype: str, gpu: Gpu) -> float:
    """Return the peak of a precision in FLOP/s; infinite for operators without arithmetic."""
    return gpu.peak(dtype) if np.any(work.flops) else math.inf


def _convolution(c: ops.CausalConvolution) -> KernelWork:
    requests, tokens, channels = _columns(c.requests, c.tokens, c.channels)
    kept = requests * channels * (TAPS - 1.0)
    return KernelWork(
        flops=2.0 * TAPS * tokens * channels,
        moved_bytes=2.0 * (tokens * channels + kept) * BYTES[c.dtype],
        blocks=requests * channels / STATE_CHUNK,
        longest=_each(tokens, requests),
        features=_rows(requests, tokens, channels),
        kept=np.full_like(tokens, c.in_loop),
    )


def _states(s: ops.StateUpdate) -> KernelWork:
    """Return the work of state updates: a decode step moves each state once, prefill per chunk."""
    requests, tokens, keys, heads = _columns(s.requests, s.tokens, s.key_heads, s.value_heads)
    state = heads * s.key_dim * s.value_dim
    ends = 2.0 * requests * state * STATE_BYTES
    streams = 2.0 * tokens * (keys * s.key_dim + heads * s.value_dim) * BYTES[s.dtype]
    if s.rule == "kda":
        streams = streams + tokens * heads * s.key_dim * BYTES[s.dtype]
    if s.phase == "decode":
        flops = 6.0 * tokens * state
        chunks = np.zeros_like(tokens)
    else:
        inside = 2.0 * STATE_CHUNK * (s.key_dim + s.value_dim) * heads
        flops = tokens * (6.0 * state + 2.0 * inside)
        chunks = np.ceil(_each(tokens, requests) / STATE_CHUNK) * requests
    return KernelWork(
        flops=flops,
        moved_bytes=ends + streams + 2.0 * chunks * state * BYTES[s.dtype],
        blocks=(requests + chunks) * heads,
        longest=_each(tokens, requests),
        features=np.concatenate([_rows(requests, tokens, heads), keys[None], -keys[None]]),
        kept=np.full_like(tokens, s.in_loop),
    )


def _quantisation(q: Quantisation) -> KernelWork:
    rows, cols = _columns(q.rows, q.cols)
    written = 0.0 if q.scan else BYTES[q.to]
    return KernelWork(
        flops=2.0 * rows * cols,
        moved_bytes=rows * cols * (BYTES[q.dtype] + written),
        blocks=rows,
        longest=cols / STATE_CHUNK,
        features=_rows(np.ones_like(rows), rows, cols),
    )


def _encoder(e: ops.EncoderAttention) -> KernelWork:
    requests, tokens, heads, dim = _columns(e.requests, e.tokens, e.heads, e.head_dim)
    pairs = tokens * _each(tokens, requests)
    return KernelWork(
        flops=4.0 * pairs * heads * dim,
        moved_bytes=4.0 * tokens * heads * dim * BYTES[e.dtype],
        blocks=np.ceil(_each(tokens, requests) / 128.0) * requests * heads,
        longest=_each(tokens, requests),
        features=np.concatenate([_rows(requests, tokens, heads), dim[None], -dim[None]]),
    )


def _embedding(e: ops.Embedding) -> KernelWork:
    rows, cols = _columns(e.rows, e.cols)
    return KernelWork(
        flops=np.zeros_like(rows),
        moved_bytes=2.0 * rows * cols * BYTES[e.dtype],
        blocks=rows * cols,
        longest=np.zeros_like(rows),
        features=_rows(np.ones_like(rows), rows, cols),
    )


def _scores(s: ops.IndexScores) -> KernelWork:
    """Return the work of scores.

    A tile of queries of several requests scores the keys of all. Scores of blocks have tiles of one
    request.
    """
    requests, queries, pairs, keys = _columns(s.requests, s.query_tokens, s.pairs, s.kv_tokens)
    each, mean, ends = _each(queries, requests), _each(pairs, queries), _each(keys, requests)
    read = s.head_dim * BYTES[INDEX_DTYPE] + SCALE_BYTES
    if s.phase == "decode":
        tiles, padded = queries, pairs
        longest = ends if s.block > 1.0 else np.zeros_like(pairs)
    else:
        tile = TILE_ROWS / s.heads
        if s.block > 1.0:
            span, tiles = np.ones_like(each), requests * np.ceil(each / tile)
        else:
            span = np.maximum(tile / np.maximum(each, 1.0), 1.0)
            tiles = np.ceil(queries / tile)
        padded, longest = tiles * tile * span * mean, span * ends
    moved = (
        keys * read
        + pairs / s.block * SCORE_BYTES
        + queries * s.heads * s.head_dim * BYTES[INDEX_DTYPE]
    )
    return KernelWork(
        flops=2.0 * padded * s.heads * s.head_dim,
        moved_bytes=moved,
        blocks=tiles,
        longest=longest,
        features=np.stack([requests, queries, each, pairs, keys, mean, ends, padded]),
        kept=np.full_like(queries, s.in_loop),
    )


def _choice(c: ops.IndexChoice) -> KernelWork:
    """Return the work of choosing keys; the queries of a request see ever more of them."""
    columns = _columns(c.requests, c.query_tokens, c.pairs, c.kv_tokens, c.top_k)
    requests, queries, pairs, keys, top_k = columns
    mean, ends = _each(pairs, queries), _each(keys, requests)
    least = np.maximum(2.0 * mean - ends, 1.0)
    spread = np.maximum(ends - least + 1.0, 1.0)
    share = np.clip((ends - np.maximum(least - 1.0, top_k)) / spread, 0.0, 1.0)
    longer = (np.maximum(least, top_k) + ends) / 2.0
    walked = queries * share * longer
    return KernelWork(
        flops=DIGITS * walked,
        moved_bytes=walked * SCORE_BYTES + queries * np.minimum(mean, top_k) * PLACE_BYTES,
        blocks=queries,
        longest=np.where(share > 0.0, longer, 0.0),
        features=np.stack([requests, queries, queries * share, walked, pairs, ends, top_k, -top_k]),
        kept=np.full_like(queries, c.in_loop),
    )


def _mixing(m: ops.StreamMixing) -> KernelWork:
    """Return the work of a block's streams: read for the weights and again for the input."""
    tokens, hidden, streams = _columns(m.tokens, m.hidden, m.streams)
    weights = (2.0 + streams) * streams
    products = weights if m.phase == "pre" else streams + 1.0
    return KernelWork(
        flops=2.0 * tokens * streams * hidden * products,
        moved_bytes=(2.0 * streams + 1.0) * tokens * hidden * BYTES[m.dtype],
        blocks=tokens,
        longest=np.zeros_like(tokens),
        features=_rows(np.ones_like(tokens), tokens, hidden),
        kept=np.full_like(tokens, m.in_loop),
    )


def _columns(*sizes: Column) -> tuple[Floats, ...]:
    """Return columns that are broadcast to one shape."""
    return tuple(np.broadcast_arrays(*(np.asarray(size, np.float64) for size in sizes)))


def _each(tokens: Floats, requests: Floats) -> Floats:
    return tokens / np.maximum(requests, 1.0)


def _rows(requests: Floats, tokens: Floats, width: Floats) -> Floats:
    """Return the features of trees; no feature falls when requests or tokens grow.

    Libraries choose kernels by the width, so the width is a feature with both signs.
    """
    each = _each(tokens, requests)
    return np.stack(
        [requests, tokens, each, width, -width, requests * width, tokens * width, each * width]
    )


def _entry(op: Auxiliary, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the entry of an operator's kernel, or of a similar measured kernel.

    States of other rules, and their convolutions, use the entry of the delta rule unless they have
    their own; quantization to formats without a measurement uses the entry of fp8.
    """
    kernel = kernel_of(op)
    if isinstance(op, ops.IndexScores):
        names = dict.fromkeys((kernel, f"index_scores_{op.phase}"))
        found = (entry_of(gpu, profile, name, (INDEX_DTYPE,)) for name in names)
        return next((entry for entry in found if entry is not None), None)
    dtype = "bf16" if BYTES[op.dtype] == BYTES["bf16"] else op.dtype
    if isinstance(op, ops.StateUpdate | ops.CausalConvolution) and op.rule != "delta":
        dtype = op.rule
    if isinstance(op, Quantisation) and op.to != "fp8":
        dtype = op.to
    return entry_of(gpu, profile, kernel, tuple(dict.fromkeys((dtype, "bf16"))))


WORK: dict[type, Callable[[Any], KernelWork]] = {
    ops.CausalConvolution: _convolution,
    ops.StateUpdate: _states,
    Quantisation: _quantisation,
    ops.EncoderAttention: _encoder,
    ops.Embedding: _embedding,
    ops.IndexScores: _scores,
    ops.IndexChoice: _choice,
    ops.StreamMixing: _mixing,
}

AUXILIARY = OperatorFamily(
    seconds=auxiliary_seconds,
    launch_s=lambda _op, _gpu, _profile: 0.0,  # measured loops have their launches inside
    flops=lambda op: work_of(op).flops,
    moved_bytes=lambda op: work_of(op).moved_bytes,
    classes=lambda op, _gpu, _profile: kernel_of(op),
    entry=_entry,
    origin=lambda _op, _gpu, _profile: (False, True),
)
