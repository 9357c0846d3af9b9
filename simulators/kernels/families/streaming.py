"""Memory-bound kernels: pointwise operations, norms and softmax.

A fused chain of pointwise operations moves its inputs and its result once. One and two input
streams have separate rates. Inside a layer a chain reads from L2 the result of the product before:

    kept = traffic, one copy of each number: half of it if a kernel works in place
    lost = f^6 / (1 + f^6),  f = kept / (share L2)
    far  = lost max(0, traffic - rest L2)
    t    = start + (traffic - far) / (l2 SMs clock) + far / (bandwidth b)

with five constants per GPU and kernel, fitted to layers timed in an engine and never transferred.

Norms and softmax keep short rows in registers: one read, one write. A block reads a longer row
several times (softmax: maximum, sum, result; layer norm: moments, result) and hits L2 as long as
all rows in flight fit: blocks per SM, times SMs, times bytes per row, against a share of L2. Launch
geometry is PyTorch's: softmax keeps up to 1,024 numbers in registers, else a row has a block of
`cols / 4` threads rounded down to a power of two, at most 512; layer norm has blocks of 128
threads. A pass over a row takes a step per four numbers and thread, and a step per number for the
remainder.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulators.catalog.gpu import Gpu, base_gpu
from simulators.core.jit import Floats
from simulators.kernels.families.family import Entry, OperatorFamily, entry_of, streaming
from simulators.kernels.profile import Profile, ReductionRates, VectorRates
from simulators.kernels.tiling import four_norm, l2_miss_rate
from simulators.workload.operators import Elementwise, Norm
from simulators.workload.precision import BYTES


def vector_seconds(vector: Elementwise, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a pointwise kernel while it streams."""
    if (entry := _chain_entry(vector, gpu, profile)) is not None:
        # The fitted start includes the launch that `price` adds.
        return np.maximum(chain_seconds(vector, gpu, entry.numbers) - profile.kernel_s, 0.0)
    return vector_bytes(vector) / (_vector_rates(vector, profile).bandwidth * gpu.hbm_bytes_per_s)


def chain_seconds(vector: Elementwise, gpu: Gpu, numbers: Mapping[str, float]) -> Floats:
    """Return the seconds of a pointwise chain inside a layer, launch included."""
    moved = vector_bytes(vector)
    kept = moved / 2.0 if vector.reads == vector.writes else moved
    lost = l2_miss_rate(kept / (numbers["share"] * gpu.l2_bytes))
    far = lost * np.maximum(moved - numbers["rest"] * gpu.l2_bytes, 0.0)
    slow = numbers["bandwidth"] * gpu.hbm_bytes_per_s
    fast = np.maximum(numbers["l2"] * gpu.sm_count * gpu.clock_hz, slow)
    seconds = numbers["start_s"] + (moved - far) / fast + far / slow
    return np.asarray(seconds, np.float64)


def chain_of(name: str) -> str:
    """Return the kind of a layer's pointwise chain, by operator name; empty for other operators.

    >>> chain_of("ffn_norm"), chain_of("rotary_cache_write"), chain_of("weighted_sum")
    ('chain_norm', 'chain_rotary', '')
    """
    if name.endswith("_norm"):
        return "chain_norm"
    if name.endswith("_activation"):
        return "chain_activation"
    return "chain_rotary" if name.startswith("rotary") else ""


def vector_bytes(vector: Elementwise) -> Floats:
    """Return the bytes of inputs and outputs, each moved once.

    >>> float(vector_bytes(Elementwise(name="add", elements=10.0, reads=2.0, dtype="fp32")))
    120.0
    """
    numbers = np.asarray(vector.elements, np.float64) * (vector.reads + vector.writes)
    return numbers * BYTES[vector.dtype]


def _chain_entry(vector: Elementwise, gpu: Gpu, profile: Profile) -> Entry | None:
    """Return the entry of an elementwise chain of a transformer; None for other operators."""
    kernel = chain_of(vector.name)
    if not kernel or BYTES[vector.dtype] != BYTES["bf16"]:
        return None
    return entry_of(gpu, profile, kernel, ("bf16",))


def vector_class(vector: Elementwise, profile: Profile) -> str:
    """Return the class of rates: the operator's own if measured, else by the number of inputs."""
    if vector.name in profile.vector:
        return vector.name
    return "binary" if vector.reads > 1.0 else "unary"


def _vector_rates(vector: Elementwise, profile: Profile) -> VectorRates:
    return profile.vector[vector_class(vector, profile)]


ELEMENTWISE = OperatorFamily(
    seconds=vector_seconds,
    flops=lambda vector: np.asarray(vector.elements, np.float64) * vector.reads,
    moved_bytes=vector_bytes,
    classes=lambda vector, _gpu, profile: vector_class(vector, profile),
    entry=_chain_entry,
    **streaming(_vector_rates),
)


REGISTER_ROW = 1024.0
"""Longest row that softmax keeps in registers."""

LONGEST_BLOCK, NORM_BLOCK, WARP = 512.0, 128.0, 32.0
"""Threads of the largest block of softmax, of a layer norm's block, and of the smallest block."""

VECTOR_BYTES = 16.0
"""Bytes per vectorized load of an aligned row."""

THREADS_PER_SM = {"turing": 1024.0, "ampere_ga10x": 1536.0, "ada": 1536.0}
"""Resident threads by architecture; 2,048 on all others (CUDA programming guide, table 21)."""

REGISTER_BYTES_PER_CLOCK = 64.0
"""Bytes per SM and clock for rows in registers, padded to a power of two."""

LEFTOVER_STEP = 0.8
"""Time of a scalar step over a row's remainder, over a step of four numbers."""


def reduction_class(norm: Norm) -> str:
    """Return the class of rates; an RMS norm has the rates of a layer norm."""
    return "softmax" if norm.kind == "softmax" else "layer_norm"


def reduction_seconds(norm: Norm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a norm or softmax while it streams."""
    rates = _reduction_rates(norm, profile)
    rows, cols = (np.asarray(x, np.float64) for x in (norm.rows, norm.cols))
    row_bytes = cols * BYTES[norm.dtype]
    softmax = reduction_class(norm) == "softmax"
    vector = VECTOR_BYTES / BYTES[norm.dtype]
    threads = _softmax_threads(cols, vector) if softmax else np.full_like(cols, NORM_BLOCK)
    resident = THREADS_PER_SM.get(gpu.architecture, 2048.0) / threads
    # A what-if device with more SMs need not keep more rows in flight than the real one.
    in_flight = base_gpu(gpu).sm_count * resident * row_bytes
    lost = l2_miss_rate(in_flight / (rates.l2_share * gpu.l2_bytes))
    again = np.where(cols > REGISTER_ROW, 2.0, 0.0) if softmax else 1.0
    memory_s = rows * row_bytes * (2.0 + again * lost) / (rates.bandwidth * gpu.hbm_bytes_per_s)
    whole = np.floor(cols / (vector * threads))
    steps = whole + LEFTOVER_STEP * (cols - whole * vector * threads) / threads
    walk = steps * rates.step_clocks + rates.row_clocks
    walk_s = rows / (gpu.sm_count * resident) * walk / gpu.clock_hz
    if softmax:
        padded_bytes = 2.0 ** np.ceil(np.log2(cols)) * BYTES[norm.dtype]
        held_s = rows * padded_bytes / (gpu.sm_count * REGISTER_BYTES_PER_CLOCK * gpu.clock_hz)
        walk_s = np.where(cols > REGISTER_ROW, walk_s, held_s)
    return four_norm(memory_s, walk_s)


def reduction_bytes(norm: Norm) -> Floats:
    """Return the bytes of the rows, read and written once.

    >>> float(reduction_bytes(Norm(name="norm", rows=2.0, cols=8.0, dtype="fp32")))
    128.0
    """
    numbers = np.asarray(norm.rows, np.float64) * np.asarray(norm.cols, np.float64)
    return 2.0 * numbers * BYTES[norm.dtype]


def _reduction_rates(norm: Norm, profile: Profile) -> ReductionRates:
    return profile.reduction[reduction_class(norm)]


def _softmax_threads(cols: Floats, vector: float) -> Floats:
    wanted = np.minimum(cols / vector, 2.0 * LONGEST_BLOCK)
    threads = 2.0 ** np.ceil(np.log2(np.maximum(np.floor(np.floor(wanted) / 2.0), 1.0)))
    return np.clip(threads, WARP, LONGEST_BLOCK)


NORM = OperatorFamily(
    seconds=reduction_seconds,
    flops=lambda norm: 4.0 * np.asarray(norm.rows, np.float64) * np.asarray(norm.cols, np.float64),
    moved_bytes=reduction_bytes,
    classes=lambda norm, _gpu, _profile: reduction_class(norm),
    **streaming(_reduction_rates),
)
