"""A GPU is its data sheet: peak rates, memory, SMs, power. No fudge factor is ever a fact."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulators.catalog.memory import MemoryLevel, check_level, load_memory
from simulators.catalog.sheet import fill, positive
from simulators.core.errors import UserError, suggestion
from simulators.core.folder import GPUS, read_toml

INSTRUCTION_ROWS = 16.0
"""Rows of the smallest matrix instruction: m16n8k16 of NVIDIA's PTX."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An accelerator as described by its vendor; peak rates are dense.

    A what-if device has its scaled name in `name` and keeps the name of what was measured in
    `measured_as`, so that a calibration can still be found and the result marked as extrapolated.
    """

    name: str
    architecture: str  # ampere, hopper, cdna2 ...: what calibrations are shared by
    vendor: str = "nvidia"
    peak_flops: Mapping[str, float]  # by precision: fp32, tf32, fp16, bf16, fp8, int8, fp4
    hbm_bytes: int  # a data sheet's "80 GB" are 80 GiB: memory stacks come in powers of two
    hbm_bytes_per_s: float
    sm_count: int
    clock_hz: float  # boost clock the peak rates are stated at
    l2_bytes: int
    sram_bytes_per_sm: int  # shared memory and L1
    exponentials_per_clock: int = 16  # of an SM's special function units, in softmax
    tdp_w: float
    idle_w: float | None = None
    link_bytes_per_s: float = 0.0  # NVLink or Infinity Fabric, per direction and GPU; 0: PCIe only
    pcie_bytes_per_s: float = 0.0  # per direction; of a superchip, its share of the link to the CPU
    cluster: str = "pcie_server"  # the machine it is usually bought in: what `cluster: auto` means
    source: str
    aliases: tuple[str, ...] = ()
    validated: bool = True  # false: no kernel of such a device was ever timed; its sheet prices it
    memory: str = ""  # DRAM type, by its name in the catalog
    vector_bits: int = 0  # of a core of a CPU: peaks that are not stated follow
    vector_units: int = 0  # that multiply and add at once
    levels: tuple[MemoryLevel, ...] = ()  # around its memory
    like: str = ""  # the GPU whose facts it has but for those that its file states
    measured_as: str = field(default="")
    clock_share: float = 1.0  # of the clock of its sheet, at which it is held
    is_copy: bool = False  # every rate is that of the GPU that it is like

    @property
    def is_what_if(self) -> bool:
        """Whether this is a variant of a real device, whose rates are others."""
        return bool(self.measured_as) and self.measured_as != self.name and not self.is_copy

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s for a precision.

        Raises:
            UserError: the GPU has no such precision; lists what it has.
        """
        if dtype not in self.peak_flops:
            raise UserError(
                f"gpu '{self.name}' has no {dtype} rate{suggestion(dtype, self.peak_flops)}\n"
                f"It has: {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]


def load_gpu(name: str) -> Gpu:
    """Return the GPU of that name, alias or TOML path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file lacks a field, or has one that means nothing.

    >>> load_gpu("h100_sxm").sm_count
    132
    """
    return GPUS.load(name, _gpu)


CHIP = (
    "architecture",
    "vendor",
    "peak_flops",
    "hbm_bytes_per_s",
    "sm_count",
    "clock_hz",
    "l2_bytes",
    "sram_bytes_per_sm",
    "exponentials_per_clock",
    "tdp_w",
    "link_bytes_per_s",
    "pcie_bytes_per_s",
    "validated",
    "memory",
    "levels",
)
"""The facts that times depend on."""


def is_alike(one: Gpu, other: Gpu) -> bool:
    """Say whether two GPUs have the same rates, whatever they are called and hold."""
    return all(getattr(one, name) == getattr(other, name) for name in CHIP)


def _gpu(path: Path) -> Gpu:
    sheet = read_toml(path)
    base = _base_of(sheet, path)
    if base is not None:
        theirs = {f.name: getattr(base, f.name) for f in dataclasses.fields(Gpu)}
        theirs |= {"aliases": [], "source": f"like {base.name}: {base.source}"}
        peaks = {**base.peak_flops, **sheet.get("peak_flops", {})}
        kept = {n: value for n, value in theirs.items() if n not in ("name", "is_copy")}
        known = {name: value for name, value in kept.items() if value is not None}
        measured_as = base.measured_as or base.name
        sheet = {**known, **sheet, "peak_flops": peaks, "measured_as": measured_as}
    gpu = fill(Gpu, _with_vector_peaks(sheet), path, "gpu")
    if base is not None and is_alike(gpu, base) and not base.is_what_if:
        gpu = dataclasses.replace(gpu, is_copy=True)
    for key in ("hbm_bytes", "hbm_bytes_per_s", "sm_count", "clock_hz", "l2_bytes", "tdp_w"):
        positive(getattr(gpu, key), path, key)
    if not gpu.peak_flops:
        raise UserError(f"{path}: [peak_flops] is empty; a gpu needs at least one precision")
    for dtype, peak in gpu.peak_flops.items():
        positive(peak, path, f"peak_flops.{dtype}")
    for level in gpu.levels:
        check_level(level, gpu.hbm_bytes, path)
    if gpu.memory:
        load_memory(gpu.memory)
    if gpu.validated and (gpu.levels or gpu.memory):
        raise UserError(f"{path}: levels and memory are of sheets that say  validated = false")
    return gpu


def _with_vector_peaks(sheet: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a sheet with the fp32 rate of its cores: two FLOPs a lane, unit and clock.

    16-bit formats that it states no rate of are multiplied as fp32.
    """
    facts = [sheet.get(n, 0) for n in ("sm_count", "vector_units", "vector_bits", "clock_hz")]
    if not all(isinstance(fact, int | float) and fact > 0 for fact in facts):
        return sheet
    cores, units, bits, clock_hz = facts
    fp32 = cores * units * (bits / 32) * 2.0 * clock_hz
    return {**sheet, "peak_flops": {"fp32": fp32, "bf16": fp32, **sheet.get("peak_flops", {})}}


def _base_of(sheet: Mapping[str, object], path: Path) -> Gpu | None:
    """Return the GPU named by the key `like` of a sheet, or None."""
    name = sheet.get("like")
    if name is None:
        return None
    if not isinstance(name, str) or GPUS.find(name) == path:
        raise UserError(f'{path}: like = {name!r}; name another GPU, as in like = "h100_sxm"')
    return load_gpu(name)


GPU_SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
"""What a device may have more or less of than its sheet says: arguments of `what_if`."""


def what_if(
    gpu: Gpu,
    *,
    sm_scale: float = 1.0,
    clock_scale: float = 1.0,
    bandwidth_scale: float = 1.0,
    l2_scale: float = 1.0,
) -> Gpu:
    """Return the device with more or fewer SMs, another clock, memory bandwidth or L2.

    Peak FLOP/s follow SMs times clock; the SM count is rounded to a whole number.
    """
    scales = (sm_scale, clock_scale, bandwidth_scale, l2_scale)
    if scales == (1.0, 1.0, 1.0, 1.0):
        return gpu
    for label, scale in zip(("sm", "clock", "bandwidth", "l2"), scales, strict=True):
        if not 0 < scale < float("inf"):
            raise UserError(f"{label}_scale is {scale}; it must be positive")
    sms = max(1, round(gpu.sm_count * sm_scale))
    speed = sms / gpu.sm_count * clock_scale
    return dataclasses.replace(
        gpu,
        name=f"{gpu.name}[sm×{sm_scale:g},clock×{clock_scale:g},bw×{bandwidth_scale:g},l2×{l2_scale:g}]",
        measured_as=gpu.measured_as or gpu.name,
        sm_count=sms,
        clock_hz=gpu.clock_hz * clock_scale,
        peak_flops={dtype: peak * speed for dtype, peak in gpu.peak_flops.items()},
        hbm_bytes_per_s=gpu.hbm_bytes_per_s * bandwidth_scale,
        l2_bytes=round(gpu.l2_bytes * l2_scale),
    )


def held_at(gpu: Gpu, clock_share: float) -> Gpu:
    """Return a GPU at a share of the nominal clock, at the voltage for that clock.

    >>> half = held_at(load_gpu("h100_sxm"), 0.5)
    >>> half.clock_share, half.peak("fp16") / load_gpu("h100_sxm").peak("fp16")
    (0.5, 0.5)
    """
    if clock_share == 1.0:
        return gpu
    slower = what_if(gpu, clock_scale=clock_share)
    return dataclasses.replace(slower, clock_share=gpu.clock_share * clock_share)


def at_full_clock(gpu: Gpu) -> Gpu:
    """Return a GPU whose clock nobody holds down."""
    faster = what_if(gpu, clock_scale=1.0 / gpu.clock_share)
    return dataclasses.replace(faster, clock_share=1.0)


def as_sold(gpu: Gpu) -> Gpu:
    """Return the real device behind a what-if device."""
    if not gpu.is_what_if:
        return gpu
    try:
        return load_gpu(gpu.measured_as)
    except UserError:  # a data sheet given by path has no name to be found by
        return gpu
