"""Latency of an operator on a GPU, from its shape and the calibration of the GPU.

Other packages import this module and `energy.py` only. Sizes may be columns; all of them broadcast.
`price` is one launch among others on a stream; `price_call` is a call timed alone from the host,
like isolated measurements.
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
from simulators.core.columns import EXTRAPOLATED, FITTED, UNMODELLED
from simulators.core.jit import Floats, Ints
from simulators.evidence.default_rates import measured_gpus
from simulators.evidence.intervals import WIDEST, interval_s
from simulators.evidence.lookup import BEST, DEFAULT_FRAMEWORK
from simulators.kernels.families import attention, auxiliary_kernels, experts, gemm, streaming
from simulators.kernels.families.family import Flags, OperatorFamily
from simulators.kernels.levels import profile_of
from simulators.kernels.profile import Profile, TensorRates
from simulators.kernels.tiling import four_norm
from simulators.workload import operators
from simulators.workload.operators import Attention, Compute, Embedding, Gemm, GroupedGemm

Level = str | Profile
"""A level of information, or what is known of a GPU as a caller's own profile says."""

FAMILIES: dict[type, OperatorFamily[Any]] = {
    Gemm: gemm.GEMM,
    GroupedGemm: experts.EXPERTS,
    Attention: attention.ATTENTION,
    operators.Norm: streaming.NORM,
    operators.Elementwise: streaming.ELEMENTWISE,
    operators.Convolution: gemm.CONVOLUTION,
    **dict.fromkeys(auxiliary_kernels.WORK, auxiliary_kernels.AUXILIARY),
}


MANY, FEW_KEPT, MANY_KEPT = 1 << 12, 16, 1024
"""Of launches of more sizes than this the last few prices are kept, of others the last many."""


@dataclass(frozen=True)
class Priced:
    """Seconds of an operator with their 90 % interval, and what they rest on."""

    latency_s: Floats
    lo_s: Floats
    hi_s: Floats
    calibrated: bool
    extrapolated: Flags
    quantising_s: float = 0.0  # of it, until the activations of a narrow product are as narrow
    is_near: bool = False  # not calibrated, but by the GPU's own products in another precision
    is_foreign: bool = False  # experts in a format that no GPU of the architecture was timed in

    @property
    def level(self) -> Ints:
        """What each time rests on, as positions in `core.columns.LEVELS`."""
        known = np.where(self.extrapolated, EXTRAPOLATED, FITTED)
        otherwise = EXTRAPOLATED if self.is_near else UNMODELLED
        return known if self.calibrated else np.full_like(known, otherwise)


def price(
    operator: Compute, gpu: Gpu, level: Level = BEST, framework: str = DEFAULT_FRAMEWORK
) -> Priced:
    """Return the latency of one launch of an operator among others on the same stream.

    Of an operator without work it is 0. `operator.repeat` is left to the caller. `framework` says
    whose kernels run, unless `level` is a profile of one's own.

    Raises:
        UserError: the GPU has no such precision; the level is unknown or not to be had.
    """
    if not gpu.validated:
        return _by_sheet(operator, gpu)
    return _launched(_Launch(operator, gpu, _profile(gpu, level, framework)))


class _Launch:
    """An operator on a GPU: equal to others of the same sizes, however often they repeat."""

    def __init__(self, operator: Compute, gpu: Gpu, profile: Profile) -> None:
        self.operator, self.gpu, self.profile = operator, gpu, profile
        sizes = {**vars(operator), "repeat": 1}
        # Both are loaded once, and kept as long as this is.
        self.key = (type(operator), id(gpu), id(profile), *map(_exactly, sizes.values()))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Launch) and self.key == other.key


def _exactly(size: object) -> object:
    """Return what is equal for sizes that are equal bit by bit."""
    if isinstance(size, np.ndarray):
        return size.shape, size.dtype.str, size.tobytes()
    return type(size), size


def _launched(launch: _Launch) -> Priced:
    """Return the price of a launch; stages, cuts and limits of a space ask for the same again."""
    numbers = sum(np.size(size) for size in vars(launch.operator).values())
    return (_one_of_few if numbers > MANY else _one_of_many)(launch)


def _price(launch: _Launch) -> Priced:
    operator, gpu, profile = launch.operator, launch.gpu, launch.profile
    family = FAMILIES[type(operator)]
    running_s = family.seconds(operator, gpu, profile)
    latency_s = running_s + family.launch_s(operator, gpu, profile)
    return _priced(operator, gpu, profile, np.where(_is_empty(operator), 0.0, latency_s))


_one_of_few = functools.lru_cache(maxsize=FEW_KEPT)(_price)
_one_of_many = functools.lru_cache(maxsize=MANY_KEPT)(_price)


def is_fitted(
    operator: Compute, gpu: Gpu, framework: str = DEFAULT_FRAMEWORK, level: str = BEST
) -> bool:
    """Say whether a fit of its own stands behind an operator, on this GPU or a relative of it."""
    if not gpu.validated:
        return False
    profile = profile_of(gpu, level, framework)
    return FAMILIES[type(operator)].entry(operator, gpu, profile) is not None


def price_call(operator: Compute, gpu: Gpu, level: Level = BEST) -> Priced:
    """Return the latency of one call timed alone, where the host's dispatch cannot be hidden.

    Raises:
        UserError: the GPU has no such precision; the level is unknown or not to be had.
    """
    if not gpu.validated:
        return _by_sheet(operator, gpu)
    profile = _profile(gpu, level, DEFAULT_FRAMEWORK)
    return _priced(operator, gpu, profile, call_seconds(operator, gpu, profile))


def call_seconds(operator: Compute, gpu: Gpu, profile: Profile) -> Floats:
    """Return the time of a call timed alone, with the rates of a given profile."""
    family = FAMILIES[type(operator)]
    seconds = family.seconds(operator, gpu, profile)
    if family.call is None:
        return seconds
    ramp_s, dispatch_s = family.call(operator, gpu, profile)
    return four_norm(seconds + ramp_s, dispatch_s)


def flops(operator: Compute) -> Floats:
    """Return the arithmetic an operator is asked for, without padding."""
    return FAMILIES[type(operator)].flops(operator)


def padded_flops(one: Attention) -> Floats:
    """Return the arithmetic that attention does on matrix units, padding included."""
    return attention.padded_flops(one)


def moved_bytes(operator: Compute) -> Floats:
    """Return the bytes an operator must move at least."""
    return FAMILIES[type(operator)].moved_bytes(operator)


def roofline_s(operator: Compute, gpu: Gpu) -> Floats:
    """Return the least time the data sheet allows."""
    return FAMILIES[type(operator)].roofline_s(operator, gpu)


def is_timed_as_layer(grouped: GroupedGemm, gpu: Gpu, framework: str, level: str = BEST) -> bool:
    """Say whether the time of experts is their share of a measured layer.

    Such a time has the gathering of rows, the activation and the weighted sum in it.
    """
    if not gpu.validated:
        return False
    return experts.entry_for(grouped, gpu, profile_of(gpu, level, framework)) is not None


def warm_up() -> None:
    """Compile the tile model and the corrections."""
    for gpu in measured_gpus():
        price(Gemm(name="warm", m=1.0, n=1.0, k=1.0, dtype="fp32"), load_gpu(gpu.name))


def _profile(gpu: Gpu, level: Level, framework: str) -> Profile:
    return level if isinstance(level, Profile) else profile_of(gpu, level, framework)


def _by_sheet(operator: Compute, gpu: Gpu) -> Priced:
    """Return the price of an operator on a device of which nothing was ever timed."""
    seconds = sheet_seconds(operator, gpu, FAMILIES[type(operator)])
    latency_s = np.where(_is_empty(operator), 0.0, seconds)
    lo_s, hi_s = interval_s(WIDEST, latency_s)
    return Priced(latency_s, lo_s, hi_s, calibrated=False, extrapolated=False)


def _is_empty(operator: Compute) -> Flags:
    """Say where there is nothing to do, and so nothing to launch."""
    if isinstance(operator, (Gemm, GroupedGemm, Attention)):
        return np.asarray(flops(operator) <= 0.0)
    return np.asarray(moved_bytes(operator) <= 0.0)


def _priced(operator: Compute, gpu: Gpu, profile: Profile, latency_s: Floats) -> Priced:
    """Add the prediction interval and the evidence of a latency, by the fit or the class."""
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
    """Return both ends of the 90 % interval, by the class of each row."""
    classes = FAMILIES[type(operator)].classes(operator, gpu, profile)
    lo_s, hi_s = latency_s, latency_s
    for name, rows in ({classes: True} if isinstance(classes, str) else classes).items():
        lo, hi = interval_s(profile.bands.get(name, WIDEST), latency_s)
        lo_s, hi_s = np.where(rows, lo, lo_s), np.where(rows, hi, hi_s)
    return lo_s, hi_s


def sheet_seconds(operator: Compute, gpu: Gpu, family: OperatorFamily[Any]) -> Floats:
    """Return the seconds of an operator by a device's sheet, shaped as its sizes are.

    Work inside the memory counts where it is quicker; what is sent there and back is not counted.

    Raises:
        UserError: the device has no such precision.
    """
    moved = np.asarray(family.moved_bytes(operator), np.float64)
    compute_s: Floats = np.zeros(())
    flops: Floats = np.zeros(())
    if not family.streams:
        flops = np.asarray(family.flops(operator) / family.saving(operator), np.float64)
        compute_s = flops / gpu.peak(operator.dtype)
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
    """Return the seconds to move bytes: from DRAM and pools at once, over the links of dies."""
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
    """Return the part of what a device addresses that lies in a pool."""
    return pool.bytes / gpu.hbm_bytes
