"""A matrix product takes its tiles' time, and never less than its roofline.

The tile model of `tiling.py` with the rates a profile says are sustained. Whatever was fitted, an
answer below FLOPs over the data sheet's peak, or below the bytes of both operands and the result
over the data sheet's bandwidth, is raised to that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.profile import GemmProfile, Profile, machine
from simulators.kernels.tiling import tile_seconds
from simulators.workload.operators import BYTES, Gemm

TENSOR_SPEEDUP = 3.0
"""A precision this much faster than fp32 runs on matrix units; P100's fp16 (2x) does not."""


def gemm_seconds(gemm: Gemm, gpu: Gpu, profile: Profile) -> NDArray[np.float64]:
    """Return the seconds one product spends on the GPU, without launch or dispatch."""
    m, n, k, batch = _sizes(gemm)
    rates = gemm_profile(gpu, profile, gemm.dtype)
    tiled = tile_seconds(
        m * batch, n, k, batch, rates.tiles, machine(gpu, rates, gemm.dtype, gemm.weight_dtype)
    )
    return np.maximum(tiled, gemm_roofline_s(gemm, gpu))


def gemm_roofline_s(gemm: Gemm, gpu: Gpu) -> NDArray[np.float64]:
    """Return the least time the data sheet allows: the larger of compute and memory time."""
    return np.maximum(
        gemm_flops(gemm) / gpu.peak(gemm.dtype), gemm_bytes(gemm) / gpu.hbm_bytes_per_s
    )


def gemm_flops(gemm: Gemm) -> NDArray[np.float64]:
    """Return multiplications and additions.

    >>> float(gemm_flops(Gemm(name="proj", m=2, n=3, k=4)))
    48.0
    """
    m, n, k, batch = _sizes(gemm)
    return 2.0 * batch * m * n * k


def gemm_bytes(gemm: Gemm) -> NDArray[np.float64]:
    """Return the bytes of both operands and the result, each moved once."""
    m, n, k, batch = _sizes(gemm)
    a = BYTES[gemm.dtype]
    b = BYTES[gemm.weight_dtype or gemm.dtype]
    return batch * (m * k * a + k * n * b + m * n * result_bytes(gemm.dtype))


def result_bytes(dtype: str) -> float:
    """Return the bytes of one number of a result: 8-bit and narrower products end as 16 bits."""
    return max(2.0, BYTES[dtype])


def gemm_profile(gpu: Gpu, profile: Profile, dtype: str) -> GemmProfile:
    """Return the rates of the units this precision runs on."""
    fast = gpu.peak(dtype) > TENSOR_SPEEDUP * gpu.peak_flops.get("fp32", gpu.peak(dtype))
    return profile.tensor if fast and dtype != "fp32" else profile.simt


def _sizes(gemm: Gemm) -> tuple[NDArray[np.float64], ...]:
    return tuple(np.asarray(x, np.float64) for x in (gemm.m, gemm.n, gemm.k, gemm.batch))
