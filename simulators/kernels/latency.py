"""The latency of one operator on one GPU, from its shape, with what is known of the GPU.

This is the only door to the room for the floors above. Sizes may be columns; all of them
broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.attention import (
    attention_bytes,
    attention_flops,
    attention_roofline_s,
    attention_seconds,
)
from simulators.kernels.elementwise import (
    vector_bytes,
    vector_flops,
    vector_roofline_s,
    vector_seconds,
)
from simulators.kernels.gemm import gemm_bytes, gemm_flops, gemm_roofline_s, gemm_seconds
from simulators.kernels.grouped_gemm import (
    grouped_gemm_bytes,
    grouped_gemm_flops,
    grouped_gemm_roofline_s,
    grouped_gemm_seconds,
)
from simulators.kernels.profile import Profile, default_profile
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import Attention, Compute, Gemm, GroupedGemm

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Priced:
    """Seconds of an operator, its 90 % band where residuals are known, and what they rest on."""

    latency_s: Floats
    lo_s: Floats | None
    hi_s: Floats | None
    calibrated: bool
    extrapolated: bool | NDArray[np.bool_]


def price(operator: Compute, gpu: Gpu) -> Priced:
    """Return the latency of one launch of an operator among others on the same stream.

    `operator.repeat` is left to the caller.

    Raises:
        UserError: the GPU has no such precision.
    """
    profile = default_profile(gpu)
    return _priced(seconds(operator, gpu, profile) + profile.kernel_s, profile, gpu)


def price_call(operator: Compute, gpu: Gpu) -> Priced:
    """Return the latency of one call timed alone, where the host's dispatch cannot be hidden."""
    profile = default_profile(gpu)
    alone = seconds(operator, gpu, profile)
    return _priced(four_norm(alone, profile.dispatch_s), profile, gpu)


def seconds(operator: Compute, gpu: Gpu, profile: Profile) -> Floats:
    """Return the time on the GPU itself, with the rates of a given profile."""
    if isinstance(operator, Gemm):
        return gemm_seconds(operator, gpu, profile)
    if isinstance(operator, GroupedGemm):
        return grouped_gemm_seconds(operator, gpu, profile)
    if isinstance(operator, Attention):
        return attention_seconds(operator, gpu, profile)
    return vector_seconds(operator, gpu, profile)


def flops(operator: Compute) -> Floats:
    """Return the arithmetic an operator is asked for, without padding."""
    if isinstance(operator, Gemm):
        return gemm_flops(operator)
    if isinstance(operator, GroupedGemm):
        return grouped_gemm_flops(operator)
    if isinstance(operator, Attention):
        return attention_flops(operator)
    return vector_flops(operator)


def moved_bytes(operator: Compute) -> Floats:
    """Return the bytes an operator must move at least."""
    if isinstance(operator, Gemm):
        return gemm_bytes(operator)
    if isinstance(operator, GroupedGemm):
        return grouped_gemm_bytes(operator)
    if isinstance(operator, Attention):
        return attention_bytes(operator)
    return vector_bytes(operator)


def roofline_s(operator: Compute, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows."""
    if isinstance(operator, Gemm):
        return gemm_roofline_s(operator, gpu)
    if isinstance(operator, GroupedGemm):
        return grouped_gemm_roofline_s(operator, gpu)
    if isinstance(operator, Attention):
        return attention_roofline_s(operator, gpu)
    return vector_roofline_s(operator, gpu)


def _priced(latency_s: Floats, profile: Profile, gpu: Gpu) -> Priced:
    return Priced(latency_s, None, None, profile.calibrated, gpu.is_what_if)
