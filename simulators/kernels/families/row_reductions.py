"""Norms and softmax: a row is read again from memory if L2 has lost it.

Short rows stay in registers: one read, one write. A block that owns a longer row walks it several
times (softmax: maximum, sum, result; layer norm: moments, result) and hits L2 as long as all rows
in flight fit: blocks per SM, times SMs, times bytes per row, against a share of L2. Launch geometry
is PyTorch's: softmax keeps up to 1,024 numbers in registers, else a row has a block of `cols / 4`
threads rounded down to a power of two, at most 512; layer norm has blocks of 128 threads. A walk
takes a step per four numbers and thread, and a step per number for the remainder.
"""

from __future__ import annotations

import numpy as np

from simulators.catalog.gpu import Gpu, as_sold
from simulators.core.jit import Floats
from simulators.kernels.families.family import OperatorFamily, streaming
from simulators.kernels.profile import Profile, ReductionRates
from simulators.kernels.tiling import four_norm, lost_of_l2
from simulators.workload.operators import Norm
from simulators.workload.precision import BYTES

REGISTER_ROW = 1024.0
"""Longest row that softmax keeps in registers."""

LONGEST_BLOCK, NORM_BLOCK, WARP = 512.0, 128.0, 32.0
"""Threads of softmax's largest block, of a layer norm's, and of the smallest."""

VECTOR_BYTES = 16.0
"""Bytes a thread loads at once where a row is aligned."""

THREADS_PER_SM = {"turing": 1024.0, "ampere_ga10x": 1536.0, "ada": 1536.0}
"""Resident threads by architecture; 2,048 on all others (CUDA programming guide, table 21)."""

REGISTER_BYTES_PER_CLOCK = 64.0
"""What an SM moves per clock when rows live in registers, padded to a power of two."""

LEFTOVER_STEP = 0.8
"""A scalar step over a row's remainder takes nearly as long as one over four numbers."""


def reduction_class(norm: Norm) -> str:
    """Return the class of rates; an RMS norm runs as a layer norm does."""
    return "softmax" if norm.kind == "softmax" else "layer_norm"


def reduction_seconds(norm: Norm, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of one row reduction while it streams."""
    rates = _rates(norm, profile)
    rows, cols = (np.asarray(x, np.float64) for x in (norm.rows, norm.cols))
    row_bytes = cols * BYTES[norm.dtype]
    softmax = reduction_class(norm) == "softmax"
    vector = VECTOR_BYTES / BYTES[norm.dtype]
    threads = _softmax_threads(cols, vector) if softmax else np.full_like(cols, NORM_BLOCK)
    resident = THREADS_PER_SM.get(gpu.architecture, 2048.0) / threads
    # A what-if device with more SMs need not keep more rows in flight than the real one.
    in_flight = as_sold(gpu).sm_count * resident * row_bytes
    lost = lost_of_l2(in_flight / (rates.l2_share * gpu.l2_bytes))
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
    """Return the bytes of the rows, in and out.

    >>> float(reduction_bytes(Norm(name="norm", rows=2.0, cols=8.0, dtype="fp32")))
    128.0
    """
    numbers = np.asarray(norm.rows, np.float64) * np.asarray(norm.cols, np.float64)
    return 2.0 * numbers * BYTES[norm.dtype]


def _rates(norm: Norm, profile: Profile) -> ReductionRates:
    return profile.reduction[reduction_class(norm)]


def _softmax_threads(cols: Floats, vector: float) -> Floats:
    """Return the threads of the block that owns a row."""
    wanted = np.minimum(cols / vector, 2.0 * LONGEST_BLOCK)
    threads = 2.0 ** np.ceil(np.log2(np.maximum(np.floor(np.floor(wanted) / 2.0), 1.0)))
    return np.clip(threads, WARP, LONGEST_BLOCK)


FAMILY = OperatorFamily(
    seconds=reduction_seconds,
    flops=lambda norm: 4.0 * np.asarray(norm.rows, np.float64) * np.asarray(norm.cols, np.float64),
    moved_bytes=reduction_bytes,
    classes=lambda norm, _gpu, _profile: reduction_class(norm),
    **streaming(_rates),
)
