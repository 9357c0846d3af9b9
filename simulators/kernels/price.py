"""The latency of one operator on one GPU, from its shape, with what is known of the GPU.

This is the only door to the room for the floors above. Sizes may be columns; all of them broadcast.
`price` is one launch among others on a stream; `price_call` is a call timed alone from the host,
which is what isolated measurements hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.kernels.families import attention, convolution, gemm
from simulators.kernels.families import auxiliary_kernels as side
from simulators.kernels.families import experts as grouped_gemm
from simulators.kernels.families import pointwise as elementwise
from simulators.kernels.families import row_reductions as reduction
from simulators.kernels.families.auxiliary_kernels import (
    CausalConvolution,
    EncoderAttention,
    Quantisation,
    StateUpdate,
)
from simulators.kernels.families.convolution import Convolution
from simulators.kernels.families.family import Family, Flags, Floats
from simulators.kernels.frameworks import DEFAULT_FRAMEWORK
from simulators.kernels.intervals import WIDEST, interval_s
from simulators.kernels.levels import BEST, profile_of
from simulators.kernels.profile import Profile
from simulators.workload.operators import (
    Attention,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
)

Kernel = Compute | Convolution | CausalConvolution | StateUpdate | Quantisation | EncoderAttention

FAMILIES: dict[type, Family[Any]] = {
    Gemm: gemm.FAMILY,
    GroupedGemm: grouped_gemm.FAMILY,
    Attention: attention.FAMILY,
    Norm: reduction.FAMILY,
    Elementwise: elementwise.FAMILY,
    Embedding: side.FAMILY,
    Convolution: convolution.FAMILY,
    **dict.fromkeys((CausalConvolution, StateUpdate, Quantisation, EncoderAttention), side.FAMILY),
}


@dataclass(frozen=True)
class Priced:
    """Seconds of an operator with their 90 % interval, and what they rest on."""

    latency_s: Floats
    lo_s: Floats
    hi_s: Floats
    calibrated: bool
    extrapolated: Flags


def price(
    operator: Kernel, gpu: Gpu, level: str | Profile = BEST, framework: str = DEFAULT_FRAMEWORK
) -> Priced:
    """Return the latency of one launch of an operator among others on the same stream.

    Of an operator without work it is 0. `operator.repeat` is left to the caller. `framework` says
    whose kernels run, unless `level` is a profile of one's own.

    Raises:
        UserError: the GPU has no such precision; the level is unknown or not to be had.
    """
    profile = level if isinstance(level, Profile) else profile_of(gpu, level, framework)
    family = FAMILIES[type(operator)]
    running_s = family.seconds(operator, gpu, profile)
    latency_s = running_s + family.launch_s(operator, gpu, profile)
    return _priced(operator, gpu, profile, np.where(_is_empty(operator), 0.0, latency_s))


def is_fitted(operator: Kernel, gpu: Gpu, framework: str = DEFAULT_FRAMEWORK) -> bool:
    """Say whether a fit of its own stands behind an operator, on this GPU or a relative of it."""
    profile = profile_of(gpu, BEST, framework)
    return FAMILIES[type(operator)].band(operator, gpu, profile) is not None


def price_call(operator: Kernel, gpu: Gpu, level: str | Profile = BEST) -> Priced:
    """Return the latency of one call timed alone, where the host's dispatch cannot be hidden.

    Args:
        operator: what is called.
        gpu: where.
        level: the level of information, or a profile of one's own.

    Raises:
        UserError: the GPU has no such precision; the level is unknown or not to be had.
    """
    profile = level if isinstance(level, Profile) else profile_of(gpu, level)
    return _priced(operator, gpu, profile, call_seconds(operator, gpu, profile))


def call_seconds(operator: Kernel, gpu: Gpu, profile: Profile) -> Floats:
    """Return the time of a call timed alone, with the rates of a given profile."""
    return FAMILIES[type(operator)].call_seconds(operator, gpu, profile)


def flops(operator: Kernel) -> Floats:
    """Return the arithmetic an operator is asked for, without padding."""
    return FAMILIES[type(operator)].flops(operator)


def moved_bytes(operator: Kernel) -> Floats:
    """Return the bytes an operator must move at least."""
    return FAMILIES[type(operator)].moved_bytes(operator)


def roofline_s(operator: Kernel, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows."""
    return FAMILIES[type(operator)].roofline_s(operator, gpu)


def _is_empty(operator: Kernel) -> Flags:
    """Say where there is nothing to do, and so nothing to launch."""
    if isinstance(operator, (Gemm, GroupedGemm, Attention)):
        return np.asarray(flops(operator) <= 0.0)
    return np.asarray(moved_bytes(operator) <= 0.0)


def _priced(operator: Kernel, gpu: Gpu, profile: Profile, latency_s: Floats) -> Priced:
    """Add the band of the operator's class and what is known of its origin."""
    family = FAMILIES[type(operator)]
    latency_s = np.asarray(latency_s, np.float64)
    lo_s, hi_s = _interval(operator, gpu, profile, latency_s)
    calibrated, extrapolated = family.origin(operator, gpu, profile)
    return Priced(latency_s, lo_s, hi_s, calibrated, extrapolated | gpu.is_what_if)


def _interval(
    operator: Kernel, gpu: Gpu, profile: Profile, latency_s: Floats
) -> tuple[Floats, Floats]:
    """Return both ends: by the band of the operator's own fit, else by that of its class."""
    family = FAMILIES[type(operator)]
    own = family.band(operator, gpu, profile)
    if own is not None:
        return interval_s(own, latency_s)
    classes: NDArray[np.str_] = family.classes(operator, gpu, profile)
    lo_s, hi_s = latency_s, latency_s
    for name in np.unique(classes):
        lo, hi = interval_s(profile.bands.get(str(name), WIDEST), latency_s)
        lo_s, hi_s = np.where(classes == name, lo, lo_s), np.where(classes == name, hi, hi_s)
    return lo_s, hi_s
