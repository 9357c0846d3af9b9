"""Latency of an operator on a GPU, from its shape and the calibration of the GPU.

Other packages import only this module and `energy.py`. Sizes may be columns, which broadcast.
`price` is one launch among others on a stream; `price_call` is a call timed alone from the host,
like isolated measurements.

A device whose kernels were never timed (CPUs, TPUs, PIM, pooled memory) has the least time that its
data sheet allows: a roofline (Williams, Waterman and Patterson, 2009) over arithmetic, DRAM and the
memory levels around it. This is a lower bound; no library reaches it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulators.catalog.gpu import (
    CACHE,
    CHIPLET,
    PIM,
    POOL,
    Gpu,
    MemoryLevel,
    load_gpu,
    load_memory,
)
from simulators.core.columns import DATASHEET, EXTRAPOLATED, FITTED
from simulators.core.jit import Floats, Ints
from simulators.evidence.default_rates import measured_gpus
from simulators.evidence.intervals import BY_SHEET, WIDEST, interval_s
from simulators.evidence.lookup import BEST, DEFAULT_FRAMEWORK
from simulators.kernels.families import attention, auxiliary_kernels, experts, gemm, streaming
from simulators.kernels.families.family import Flags, OperatorFamily
from simulators.kernels.levels import profile_of
from simulators.kernels.profile import Profile, TensorRates
from simulators.kernels.tiling import four_norm
from simulators.workload import operators
from simulators.workload.operators import Attention, Compute, Embedding, Gemm, GroupedGemm

Level = str | Profile
"""A level of information, or a caller's own profile of the GPU."""

FAMILIES: dict[type, OperatorFamily[Any]] = {
    Gemm: gemm.GEMM,
    GroupedGemm: experts.EXPERTS,
    Attention: attention.ATTENTION,
    operators.Norm: streaming.NORM,
    operators.Elementwise: streaming.ELEMENTWISE,
    operators.Convolution: gemm.CONVOLUTION,
    **dict.fromkeys(auxiliary_kernels.WORK, auxiliary_kernels.AUXILIARY),
}
padded_flops = attention.padded_flops

LARGE_LAUNCH, LARGE_CACHE, SMALL_CACHE = 1 << 12, 16, 1024
"""Numbers in a large launch; cached prices of large launches and of small launches."""


@dataclass(frozen=True)
class Priced:
    """Seconds of an operator with their 90 % interval, and the evidence behind them."""

    latency_s: Floats
    lo_s: Floats
    hi_s: Floats
    calibrated: bool
    extrapolated: Flags
    quantising_s: float = 0.0  # of the latency: quantization of a product's activations
    is_near: bool = False  # from the GPU's own products in another precision
    is_foreign: bool = False  # experts in a format that was timed on no GPU of the architecture

    @property
    def level(self) -> Ints:
        """The evidence level of each time, as a position in `core.columns.LEVELS`."""
        known = np.where(self.extrapolated, EXTRAPOLATED, FITTED)
        otherwise = EXTRAPOLATED if self.is_near else DATASHEET
        return known if self.calibrated else np.full_like(known, otherwise)


def price(
    operator: Compute, gpu: Gpu, level: Level = BEST, framework: str = DEFAULT_FRAMEWORK
) -> Priced:
    """Return the latency of one launch of an operator among others on the same stream.

    An operator without work takes 0 s. The caller multiplies by `operator.repeat`. `framework`
    selects the kernel library, unless `level` is a profile.

    Raises:
        UserError: the GPU lacks the precision, or the level is unknown or not available.
    """
    if not gpu.validated:
        return _by_sheet(operator, gpu)
    launch = _Launch(operator, gpu, _profile(gpu, level, framework))
    numbers = sum(np.size(size) for size in vars(operator).values())
    return (_large_price if numbers > LARGE_LAUNCH else _small_price)(launch)


class _Launch:
    """An operator on a GPU as a cache key: equal sizes are equal, whatever `repeat` is."""

    def __init__(self, operator: Compute, gpu: Gpu, profile: Profile) -> None:
        self.operator, self.gpu, self.profile = operator, gpu, profile
        sizes = {**vars(operator), "repeat": 1}
        # GPU and profile live as long as this object, so their ids are unique.
        self.key = (type(operator), id(gpu), id(profile), *map(_size_key, sizes.values()))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Launch) and self.key == other.key


def _size_key(size: object) -> object:
    """Return a hashable key that is equal for sizes with equal bits."""
    if isinstance(size, np.ndarray):
        return size.shape, size.dtype.str, size.tobytes()
    return type(size), size


def _price(launch: _Launch) -> Priced:
    operator, gpu, profile = launch.operator, launch.gpu, launch.profile
    family = FAMILIES[type(operator)]
    running_s = family.seconds(operator, gpu, profile)
    latency_s = running_s + family.launch_s(operator, gpu, profile)
    return _priced(operator, gpu, profile, np.where(_is_empty(operator), 0.0, latency_s))


_large_price = functools.lru_cache(maxsize=LARGE_CACHE)(_price)
_small_price = functools.lru_cache(maxsize=SMALL_CACHE)(_price)


def is_fitted(
    operator: Compute, gpu: Gpu, framework: str = DEFAULT_FRAMEWORK, level: str = BEST
) -> bool:
    """Return whether the operator has a kernel entry, measured on this GPU or transferred."""
    if not gpu.validated:
        return False
    profile = profile_of(gpu, level, framework)
    return FAMILIES[type(operator)].entry(operator, gpu, profile) is not None


def price_call(operator: Compute, gpu: Gpu, level: Level = BEST) -> Priced:
    """Return the latency of one call timed alone, which includes the host's dispatch.

    Raises:
        UserError: the GPU lacks the precision, or the level is unknown or not available.
    """
    if not gpu.validated:
        return _by_sheet(operator, gpu)
    profile = _profile(gpu, level, DEFAULT_FRAMEWORK)
    return _priced(operator, gpu, profile, call_seconds(operator, gpu, profile))


def call_seconds(operator: Compute, gpu: Gpu, profile: Profile) -> Floats:
    """Return the seconds of a call timed alone, with the rates of a given profile."""
    family = FAMILIES[type(operator)]
    seconds = family.seconds(operator, gpu, profile)
    if family.call is None:
        return seconds
    ramp_s, dispatch_s = family.call(operator, gpu, profile)
    return four_norm(seconds + ramp_s, dispatch_s)


def flops(operator: Compute) -> Floats:
    """Return the FLOPs of an operator, without padding."""
    return FAMILIES[type(operator)].flops(operator)


def moved_bytes(operator: Compute) -> Floats:
    """Return the least memory traffic of an operator in bytes: inputs and outputs once."""
    return FAMILIES[type(operator)].moved_bytes(operator)


def roofline_s(operator: Compute, gpu: Gpu) -> Floats:
    """Return the roofline in seconds: the least time that the data sheet allows."""
    return FAMILIES[type(operator)].roofline_s(operator, gpu)


def warm_up() -> None:
    """Compile the tile model and the corrections."""
    for gpu in measured_gpus():
        price(Gemm(name="warm", m=1.0, n=1.0, k=1.0, dtype="fp32"), load_gpu(gpu.name))


def _profile(gpu: Gpu, level: Level, framework: str) -> Profile:
    return level if isinstance(level, Profile) else profile_of(gpu, level, framework)


def _by_sheet(operator: Compute, gpu: Gpu) -> Priced:
    """Return the price of an operator on a device whose kernels were never timed."""
    seconds = sheet_seconds(operator, gpu, FAMILIES[type(operator)])
    latency_s = np.where(_is_empty(operator), 0.0, seconds)
    lo_s, hi_s = interval_s(BY_SHEET, latency_s)
    return Priced(latency_s, lo_s, hi_s, calibrated=False, extrapolated=False)


def _is_empty(operator: Compute) -> Flags:
    """Return a mask of the rows without work, which launch no kernel."""
    if isinstance(operator, (Gemm, GroupedGemm, Attention)):
        return np.asarray(flops(operator) <= 0.0)
    return np.asarray(moved_bytes(operator) <= 0.0)


def _priced(operator: Compute, gpu: Gpu, profile: Profile, latency_s: Floats) -> Priced:
    """Return a latency with its prediction interval and evidence, by kernel entry or class."""
    family = FAMILIES[type(operator)]
    latency_s = np.asarray(latency_s, np.float64)
    calibrated, extrapolated = family.origin(operator, gpu, profile)
    if (entry := family.entry(operator, gpu, profile)) is not None:
        lo_s, hi_s = interval_s(entry.band, latency_s)
        calibrated, extrapolated = entry.calibrated, False
    else:
        lo_s, hi_s = _interval_of_classes(operator, gpu, profile, latency_s)
    quantised_s, is_near, is_foreign = 0.0, False, False
    if isinstance(operator, Gemm):
        quantised_s = gemm.quantising_s(operator, gpu, profile)
        if not calibrated:
            (_, rates), _ = gemm.rates_of(operator, gpu, profile)
            is_near = isinstance(rates, TensorRates) and rates.calibrated
    if isinstance(operator, GroupedGemm) and not calibrated:
        is_foreign = experts.is_foreign(operator, gpu, profile)
    extrapolated = extrapolated | gpu.is_what_if
    return Priced(latency_s, lo_s, hi_s, calibrated, extrapolated, quantised_s, is_near, is_foreign)


def _interval_of_classes(
    operator: Compute, gpu: Gpu, profile: Profile, latency_s: Floats
) -> tuple[Floats, Floats]:
    """Return both ends of the 90 % interval, by the interval class of each row."""
    classes = FAMILIES[type(operator)].classes(operator, gpu, profile)
    lo_s, hi_s = latency_s, latency_s
    for name, rows in ({classes: True} if isinstance(classes, str) else classes).items():
        lo, hi = interval_s(profile.bands.get(name, WIDEST), latency_s)
        lo_s, hi_s = np.where(rows, lo, lo_s), np.where(rows, hi, hi_s)
    return lo_s, hi_s


def sheet_seconds(operator: Compute, gpu: Gpu, family: OperatorFamily[Any]) -> Floats:
    """Return the roofline seconds of an operator on a device, in the shape of its sizes.

    Processing in memory is used where it is faster; transfers to and from it are not counted.

    Raises:
        UserError: the device lacks the precision.
    """
    moved = np.asarray(family.moved_bytes(operator), np.float64)
    flops = np.asarray(family.flops(operator) / family.saving(operator), np.float64)
    on_vectors = family.streams and operator.dtype not in gpu.peak_flops
    compute_s = flops / gpu.peak("fp32" if on_vectors else operator.dtype)
    is_random = isinstance(operator, Embedding)
    memory_s = _sheet_memory_s(moved, gpu, is_random=is_random)
    for level in gpu.levels:
        if level.kind == CACHE and family.streams and not is_random:
            memory_s = np.where(moved <= level.bytes, moved / level.bytes_per_s, memory_s)
    seconds = np.maximum(compute_s, memory_s)
    for level in gpu.levels:
        if level.kind == PIM:
            inside_s = np.maximum(flops / level.flops, moved / level.bytes_per_s)
            seconds = np.minimum(seconds, inside_s)
    return np.asarray(seconds, np.float64)


def _sheet_memory_s(moved: Floats, gpu: Gpu, *, is_random: bool) -> Floats:
    """Return the seconds of memory traffic: DRAM, pools and chiplet links work in parallel."""
    rate = gpu.hbm_bytes_per_s
    if gpu.memory:
        memory = load_memory(gpu.memory)
        rate *= memory.random if is_random else memory.streaming
    pools = [level for level in gpu.levels if level.kind == POOL]
    near = 1.0 - sum(_pool_share(pool, gpu) for pool in pools)
    seconds = moved * near / rate
    for pool in pools:
        seconds = np.maximum(seconds, moved * _pool_share(pool, gpu) / pool.bytes_per_s)
    for level in gpu.levels:
        if level.kind == CHIPLET:
            links = level.count * level.bytes_per_s
            seconds = np.maximum(seconds, moved * level.crossing / links)
    return np.asarray(seconds, np.float64)


def _pool_share(pool: MemoryLevel, gpu: Gpu) -> float:
    return pool.bytes / gpu.hbm_bytes
