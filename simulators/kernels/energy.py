"""Power of a GPU while a kernel runs, from its activity, and the energy of a launch.

    demand = idle + (tdp - idle) * (active_idle + compute f + memory g)
    watts  = (demand^-8 + (limit tdp)^-8)^(-1/8)

`f` and `g` are achieved over peak rate, of arithmetic in its dtype and of device memory. Clocks,
caches and leakage draw `active_idle` as soon as a kernel runs; `compute` is fitted per dtype, with
extra factors for attention. At the limit the clock falls: time grows, power does not. A lower
clock scales `active_idle` and `compute` by `power_at_clock`. A what-if GPU keeps the measured GPU's
energy per FLOP (at a voltage that follows its clock) and per byte; its active idle power and limit
scale with its SMs. Trees fitted to a metered GPU correct these watts; the trees do not depend on
time or rates.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulators.catalog.gpu import Gpu, base_gpu, load_memory
from simulators.core.calibration import read_calibration
from simulators.core.jit import Floats
from simulators.evidence.lookup import calibration_file, find
from simulators.kernels.corrections import Correction, corrected, correction_from
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.operators import (
    Attention,
    Compute,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
)
from simulators.workload.precision import BYTES

COMPUTE_SHARE = 1.0
"""Default `compute`: GPUs are designed so that matrix units at full rate reach the power limit."""

MEMORY_SHARE = 0.55
"""Default `memory`: HBM takes about half of the dynamic power in streaming kernels."""

IDLE_SHARE = 0.15
"""Idle power over the power limit, for data sheets without idle power."""

SAME_MULTIPLIERS = {"fp16": "bf16", "tf32": "bf16", "int8": "fp8", "int4": "fp4"}
"""Measured formats with the same multipliers, by unmeasured format."""

STREAMING = 2.0
"""Energy per byte of decode attention, vector operators and products with narrow weights over that
of other products. Power readings of kernels do not settle it: attention was looped for 0.3 s, too
short for the meter, so that readings include earlier kernels (at equal traffic they rise by half
between kernels of 0.1 and 1 ms); the other operators were not metered. Chosen among 1.0, 1.6, 2.0
and 2.4 by the watts of 243 served models on H100 (ML.ENERGY)."""

LOWEST_VOLTAGE = 0.7
"""Lowest voltage over the voltage at full clock: about 0.7 V of 1.0 V on current GPUs. A choice:
no table of GPUs at several clocks supports it."""

CLOCK_DIGITS = 9
"""Digits of a ratio of clocks, so that rounding errors of scaling back and forth vanish."""

SHARPNESS = 8.0
"""Exponent of the soft minimum of demand and limit: within 1 % of either at a tenth from both."""


@dataclass(frozen=True, kw_only=True)
class PowerModel:
    """Dynamic power by activity, as shares of the difference between limit and idle power."""

    active_idle: float = 0.0
    memory: float = MEMORY_SHARE
    compute: Mapping[str, float] = field(default_factory=dict)  # by format, else `COMPUTE_SHARE`
    factor: Mapping[str, float] = field(default_factory=dict)  # on compute, by attention phase
    limit: float = 1.0  # sustained power limit over the limit of the data sheet
    shapes: Mapping[str, Correction] = field(default_factory=dict)  # by `kernel_of`; metered GPUs


def energy_j(operator: Compute, gpu: Gpu, latency_s: Floats) -> Floats:
    """Return the joules of the GPU during one launch that takes `latency_s`."""
    return power_w(operator, gpu, latency_s) * latency_s


def power_w(operator: Compute, gpu: Gpu, latency_s: Floats) -> Floats:
    """Return the mean watts of the GPU in back-to-back launches, at most its power limit.

    Raises:
        UserError: a calibration is unreadable.
    """
    model = power_model_of(gpu)
    if gpu.validated and is_streaming(operator):
        model = replace(model, memory=STREAMING * model.memory, shapes={})
    return modelled_w(model, operator, gpu, latency_s)


def is_streaming(operator: Compute) -> bool:
    """Return whether an operator streams memory through vector units, as in `STREAMING`."""
    if isinstance(operator, Attention):
        return operator.phase == "decode"
    if isinstance(operator, Gemm | GroupedGemm):  # narrow weights are widened there
        return BYTES[operator.weight_dtype or operator.dtype] < BYTES[operator.dtype]
    return isinstance(operator, Norm | Elementwise | Embedding)


def modelled_w(model: PowerModel, operator: Compute, gpu: Gpu, latency_s: Floats) -> Floats:
    """Return the watts of a power model, between idle power and the data sheet's limit."""
    watts = formula_w(model, operator, gpu, latency_s)
    correction = model.shapes.get(kernel_of(operator))
    if correction is not None:
        assert isinstance(operator, Gemm | Attention)
        features = shape_features(operator, watts.shape)
        watts = corrected(correction, features, watts.reshape(-1)).reshape(watts.shape)
    return np.clip(watts, idle_w_of(gpu), peak_w_of(gpu))


def formula_w(model: PowerModel, operator: Compute, gpu: Gpu, latency_s: Floats) -> Floats:
    """Return the watts of a power model's formula, without its trees."""
    dtype = "fp32" if isinstance(operator, Norm | Elementwise | Embedding) else operator.dtype
    share = model.compute.get(format_of(operator), COMPUTE_SHARE)
    if isinstance(operator, Attention):
        share *= model.factor.get(operator.phase, 1.0)
    f = flops(operator) / (gpu.peak_flops.get(dtype, gpu.peak("fp32")) * latency_s)
    g = moved_bytes(operator) / (gpu.hbm_bytes_per_s * latency_s)
    idle_w = idle_w_of(gpu)
    sms, memory = _relative_power(gpu)
    core = _core_power(gpu) * (model.active_idle + share * np.minimum(f, 1.0))
    streams = model.memory * np.minimum(g, 1.0)
    demand_w = idle_w + (gpu.tdp_w - idle_w) * (core + memory * streams)
    # The limit scales with the SMs; memory that scales more than the SMs adds the difference.
    limit_w = model.limit * gpu.tdp_w * sms + (gpu.tdp_w - idle_w) * (memory - sms) * streams
    return np.asarray((demand_w**-SHARPNESS + limit_w**-SHARPNESS) ** (-1.0 / SHARPNESS))


def _relative_power(gpu: Gpu) -> tuple[float, float]:
    """Return the power of SMs and of memory of a what-if GPU, relative to its base GPU.

    Both are 1 for GPUs whose power was set explicitly: partitions, and sheets that state a limit.
    """
    if not (gpu.is_what_if and gpu.validated):
        return 1.0, 1.0
    base = base_gpu(gpu)
    if gpu.tdp_w != base.tdp_w or gpu.idle_w != base.idle_w:
        return 1.0, 1.0
    clock = round(gpu.clock_hz / (base.clock_hz * gpu.clock_share), CLOCK_DIGITS)
    sms = gpu.sm_count / base.sm_count * power_at_clock(clock)
    return sms, gpu.hbm_bytes_per_s / base.hbm_bytes_per_s


def _core_power(gpu: Gpu) -> float:
    """Return the power of the SMs at a GPU's clock, relative to its base GPU at full clock."""
    if _relative_power(gpu) == (1.0, 1.0):
        return power_at_clock(gpu.clock_share)
    base = base_gpu(gpu)
    clock = round(gpu.clock_hz / base.clock_hz, CLOCK_DIGITS)
    return gpu.sm_count / base.sm_count * power_at_clock(clock)


def power_at_clock(clock_share: float) -> float:
    """Return the power of clocked logic at a share of the full clock, over power at full clock.

    Power goes as clock times voltage squared, and voltage as the clock, down to a minimum: cubic,
    then linear, as Kandiah et al. model GPUs ("AccelWattch", MICRO 2021, section 4).

    >>> power_at_clock(1.0), round(power_at_clock(0.8), 3), round(power_at_clock(0.5), 3)
    (1.0, 0.512, 0.245)
    """
    return clock_share * max(LOWEST_VOLTAGE, clock_share) ** 2


def kernel_of(operator: Compute) -> str:
    """Return the name of an operator's kernel in power calibrations; empty if unmetered.

    >>> kernel_of(Gemm(name="g", m=1, n=1, k=1, dtype="fp8"))
    'gemm_fp8'
    """
    if isinstance(operator, Gemm):
        return f"gemm_{format_of(operator)}"
    return operator.phase if isinstance(operator, Attention) and not operator.latent else ""


def shape_features(operator: Gemm | Attention, shape: tuple[int, ...]) -> Floats:
    """Return the features of trees, one per row: sizes, followed by their negatives."""
    flat = np.stack([np.broadcast_to(c, shape).reshape(-1) for c in _sizes(operator)])
    return np.concatenate([flat, -flat])


def _sizes(operator: Gemm | Attention) -> list[Floats]:
    if isinstance(operator, Gemm):
        m, n, k = (np.asarray(size, np.float64) for size in (operator.m, operator.n, operator.k))
        return [m, n, k, m * n, n * k, m * k]
    requests = np.maximum(np.asarray(operator.requests, np.float64), 1.0)
    heads, groups = (np.asarray(x, np.float64) for x in (operator.heads, operator.kv_heads))
    return [
        np.asarray(moved_bytes(operator)),
        requests,
        np.asarray(operator.query_tokens / requests),
        np.asarray(operator.kv_tokens / requests),
        heads,
        groups,
        heads / groups,
        np.asarray(operator.head_dim, np.float64),
        requests * groups,
    ]


def format_of(operator: Compute) -> str:
    """Return the measured format whose multipliers an operator uses.

    >>> format_of(Gemm(name="g", m=1, n=1, k=1, dtype="fp8", weight_dtype="fp8_block"))
    'fp8_block'
    """
    if isinstance(operator, Norm | Elementwise | Embedding):
        return "fp32"
    if isinstance(operator, Gemm) and operator.weight_dtype == "fp8_block":
        return operator.weight_dtype
    return SAME_MULTIPLIERS.get(operator.dtype, operator.dtype)


def idle_w_of(gpu: Gpu) -> float:
    """Return the idle power of a GPU in watts, by data sheet or as a share of its power limit."""
    return IDLE_SHARE * gpu.tdp_w if gpu.idle_w is None else gpu.idle_w


def peak_w_of(gpu: Gpu) -> float:
    """Return the highest power of a GPU in watts: its limit, scaled for what-if GPUs.

    A what-if GPU idles like its base GPU, so its limit is at least the idle power.
    """
    return max(idle_w_of(gpu), gpu.tdp_w * max(_relative_power(gpu)))


def with_power_shares(gpu: Gpu, idle: float, limit: float) -> Gpu:
    """Return a GPU with a share `idle` of its idle power and a share `limit` of its power limit.

    >>> from simulators.catalog.gpu import load_gpu
    >>> half = with_power_shares(load_gpu("h100_sxm"), 0.5, 1.0)
    >>> half.tdp_w, idle_w_of(half) / idle_w_of(load_gpu("h100_sxm"))
    (700.0, 0.5)
    """
    return replace(gpu, idle_w=idle * idle_w_of(gpu), tdp_w=limit * gpu.tdp_w)


def active_idle_w(gpu: Gpu) -> float:
    """Return the watts of a GPU between the kernels of a stream, while its clocks run."""
    idle_w = idle_w_of(gpu)
    return idle_w + (gpu.tdp_w - idle_w) * _core_power(gpu) * power_model_of(gpu).active_idle


def power_model_of(gpu: Gpu) -> PowerModel:
    """Return the power model of a GPU, or of the nearest metered GPU without its trees.

    A device that was never measured has the energy per bit of its DRAM, if the catalog states it.
    """
    if gpu.validated:
        return _power_model(gpu.measured_as or gpu.name, gpu.architecture)
    joules = load_memory(gpu.memory).energy_j_per_bit if gpu.memory else None
    if joules is None:
        return PowerModel()
    return PowerModel(memory=8.0 * joules * gpu.hbm_bytes_per_s / (gpu.tdp_w - idle_w_of(gpu)))


@functools.lru_cache(maxsize=128)
def _power_model(gpu: str, architecture: str) -> PowerModel:
    found = find("power", gpu, architecture, lambda gpu, _whose, _dtype: measured_power(gpu))
    if found is None:
        return PowerModel()
    return power_model_from(found.numbers, whole=found.is_of_this_gpu)


def power_model_from(content: Mapping[str, Any], *, whole: bool) -> PowerModel:
    """Return the power model of a calibration; trees are included only if `whole`."""
    table, shapes = content["draw"], content["shapes"] if whole else {}
    return PowerModel(
        active_idle=float(table["active_idle"]),
        memory=float(table["memory"]),
        compute={name: float(share) for name, share in table["compute"].items()},
        factor={name: float(factor) for name, factor in table["factor"].items()},
        limit=float(table["limit"]),
        shapes={name: correction_from(correction) for name, correction in shapes.items()},
    )


def measured_power(gpu: str) -> Mapping[str, Any] | None:
    """Return the power calibration of a GPU, or None if the GPU was not metered."""
    file = calibration_file("power", gpu)
    return None if file is None else read_calibration(file)
