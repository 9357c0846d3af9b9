"""A kernel draws idle power plus what its arithmetic and its memory traffic add, up to the limit.

    watts = idle + (tdp - idle) * min(1, compute share + memory share)

A share is achieved over peak rate, weighted: a kernel at the full compute rate or at the full
memory bandwidth draws `COMPUTE_SHARE` or `MEMORY_SHARE` of the room between idle and the board's
limit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.latency import Kernel, flops, moved_bytes
from simulators.workload.operators import Elementwise, Embedding, Norm

COMPUTE_SHARE = 1.0
"""Boards are designed so that the matrix units at full rate reach the power limit."""

MEMORY_SHARE = 0.55
"""HBM and its path take about half of a board's dynamic power in streaming kernels."""

IDLE_SHARE = 0.15
"""Idle part of the board's limit where a data sheet does not state it."""

Floats = NDArray[np.float64]


def energy_j(operator: Kernel, gpu: Gpu, latency_s: Floats) -> Floats:
    """Return the joules the board draws during one launch that takes `latency_s`."""
    return power_w(operator, gpu, latency_s) * latency_s


def power_w(operator: Kernel, gpu: Gpu, latency_s: Floats) -> Floats:
    """Return the mean watts of the board, between idle and its limit."""
    dtype = "fp32" if isinstance(operator, Norm | Elementwise | Embedding) else operator.dtype
    compute = (
        COMPUTE_SHARE * flops(operator) / (gpu.peak_flops.get(dtype, gpu.peak("fp32")) * latency_s)
    )
    memory = MEMORY_SHARE * moved_bytes(operator) / (gpu.hbm_bytes_per_s * latency_s)
    idle_w = IDLE_SHARE * gpu.tdp_w if gpu.idle_w is None else gpu.idle_w
    return idle_w + (gpu.tdp_w - idle_w) * np.minimum(1.0, compute + memory)
