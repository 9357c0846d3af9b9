"""GPUs as described by their data sheets: peak rates, memory, SMs, power, MIG slices and dies.

A data sheet holds facts only, never a fitted factor. The sustainable share of a DRAM's rate follows
from its timings: all but refresh for accesses in order, and four activates per window for random
accesses (Jacob, Ng and Wang, "Memory systems", 2008). Both are bounds, not measurements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulators.catalog.sheet import fill, positive
from simulators.core.errors import Infeasible, UnknownNameError, UserError, suggestion
from simulators.core.folder import GPUS, MEMORIES, read_toml

ACTIVATES = 4
"""Rows of a channel that may be opened within `Memory.window_s`."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A type of DRAM; figures are per channel (HBM: pseudo-channel)."""

    name: str
    pin_bits_per_s: float
    channel_bits: int
    burst_bytes: int  # of one access
    window_s: float  # window of four activates: tFAW
    refresh_s: float  # of all banks: tRFC
    refresh_every_s: float  # tREFI
    energy_j_per_bit: float | None = None  # of device and interface; None: unknown
    source: str

    @property
    def streaming(self) -> float:
        """Share of the rate for accesses in order: all but refresh."""
        return 1.0 - self.refresh_s / self.refresh_every_s

    @property
    def random(self) -> float:
        """Share of the rate for random accesses, which open a row each.

        >>> load_memory("hbm2e").random < load_memory("hbm2e").streaming
        True
        """
        rate = self.pin_bits_per_s * self.channel_bits / 8.0
        return self.streaming * min(1.0, ACTIVATES * self.burst_bytes / self.window_s / rate)


def load_memory(name: str) -> Memory:
    """Return a DRAM type by name or TOML path.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, or a field is invalid.
    """
    return MEMORIES.load(name, _memory)


def _memory(path: Path) -> Memory:
    memory = fill(Memory, read_toml(path), path, "memory")
    for key in ("pin_bits_per_s", "channel_bits", "burst_bytes", "window_s", "refresh_every_s"):
        positive(getattr(memory, key), path, key)
    if not 0.0 <= memory.refresh_s < memory.refresh_every_s:
        raise UserError(f"{path}: refresh_s is {memory.refresh_s:g}; it is less than its interval")
    return memory


CACHE, CHIPLET, POOL, PIM = "cache", "chiplet", "pool", "pim"
KINDS = (CACHE, CHIPLET, POOL, PIM)


@dataclass(frozen=True, kw_only=True)
class MemoryLevel:
    """A memory level between the arithmetic units and the data.

    A `cache` holds data that consecutive operators share. A `chiplet` level is the link of each
    die, which a `share` of its data crosses. A `pool` is memory behind a link such as CXL: a part
    of `hbm_bytes`, with pages spread over it. `pim` computes inside the memory at the rate of its
    banks.
    """

    kind: str
    bytes_per_s: float  # of a chiplet: per die and direction
    bytes: int = 0  # of a cache or a pool
    count: int = 1  # of chiplets
    share: float | None = None  # of a die's data that crosses; None: all but 1 / count
    flops: float = 0.0  # of PIM, in any format

    @property
    def crossing(self) -> float:
        """Share of a die's data that crosses its link."""
        return 1.0 - 1.0 / self.count if self.share is None else self.share


def check_level(level: MemoryLevel, hbm_bytes: int, path: Path) -> None:
    """Raise `UserError` if a memory level of a data sheet is invalid."""
    if level.kind not in KINDS:
        raise UserError(f"{path}: a level's kind is '{level.kind}'; it is {', '.join(KINDS)}")
    positive(level.bytes_per_s, path, "levels.bytes_per_s")
    if level.kind in (CACHE, POOL):
        positive(level.bytes, path, "levels.bytes")
    if level.kind == PIM:
        positive(level.flops, path, "levels.flops")
    if level.kind == POOL and level.bytes >= hbm_bytes:
        raise UserError(f"{path}: a pool is a part of hbm_bytes, which counts all there is")
    if level.count < 1 or not 0.0 <= level.crossing <= 1.0:
        raise UserError(f"{path}: count is one or more chiplets, share lies between 0 and 1")


INSTRUCTION_ROWS = 16.0
"""Rows of the smallest matrix instruction: m16n8k16 of NVIDIA PTX."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An accelerator as described by its vendor; peak rates are dense.

    A what-if GPU has a name with its scales, and the name of its base GPU in `measured_as`. The
    base GPU's calibration prices it, and results are marked as extrapolated.
    """

    name: str
    architecture: str  # ampere, hopper, cdna2 ...: GPUs that may share calibrations
    vendor: str = "nvidia"
    peak_flops: Mapping[str, float]  # by precision: fp32, tf32, fp16, bf16, fp8, int8, fp4
    hbm_bytes: int  # a data sheet's "80 GB" are 80 GiB: memory stacks come in powers of two
    hbm_bytes_per_s: float
    sm_count: int
    clock_hz: float  # boost clock the peak rates are stated at
    l2_bytes: int
    sram_bytes_per_sm: int  # shared memory and L1
    exponentials_per_clock: int = 16  # of an SM's special function units
    tdp_w: float
    idle_w: float | None = None
    least_limit_w: float | None = None  # lowest power limit that the driver accepts; None: unknown
    link_bytes_per_s: float = 0.0  # NVLink or Infinity Fabric, per direction and GPU; 0: PCIe only
    pcie_bytes_per_s: float = 0.0  # per direction; of a superchip: its share of the link to the CPU
    cluster: str = "pcie_server"  # the usual cluster, which `cluster: auto` selects
    source: str
    aliases: tuple[str, ...] = ()
    validated: bool = True  # false: kernels were never timed, so the data sheet prices the device
    memory: str = ""  # DRAM type, by its name in the catalog
    vector_bits: int = 0  # of a CPU core, for peaks that the file does not state
    vector_units: int = 0  # fused multiply-add units of a CPU core
    levels: tuple[MemoryLevel, ...] = ()  # around its memory
    like: str = ""  # GPU whose facts apply unless the file states them
    measured_as: str = field(default="")
    clock_share: float = 1.0  # fixed clock over the clock of the data sheet
    is_copy: bool = False  # all rates equal those of the GPU in `like`

    @property
    def is_what_if(self) -> bool:
        """Whether this is a variant of a real GPU with other rates."""
        return bool(self.measured_as) and self.measured_as != self.name and not self.is_copy

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s for a precision.

        Raises:
            UserError: the GPU lacks the precision.
        """
        if dtype not in self.peak_flops:
            raise UserError(
                f"gpu '{self.name}' has no {dtype} rate{suggestion(dtype, self.peak_flops)}\n"
                f"It has: {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]


def load_gpu(name: str) -> Gpu:
    """Return a GPU by name, alias or TOML path.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, or a field is invalid.

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
    """Return whether two GPUs have the same rates; names and memory sizes may differ."""
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
    if gpu.idle_w is not None and gpu.idle_w > gpu.tdp_w:
        raise UserError(f"{path}: idle_w is {gpu.idle_w:g}; it is at most tdp_w, {gpu.tdp_w:g}")
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
    """Return a CPU's sheet with its fp32 peak: two FLOPs per lane, unit and clock.

    bf16 has the fp32 peak unless the sheet states a bf16 peak.
    """
    facts = [sheet.get(n, 0) for n in ("sm_count", "vector_units", "vector_bits", "clock_hz")]
    if not all(isinstance(fact, int | float) and fact > 0 for fact in facts):
        return sheet
    cores, units, bits, clock_hz = facts
    fp32 = cores * units * (bits / 32) * 2.0 * clock_hz
    return {**sheet, "peak_flops": {"fp32": fp32, "bf16": fp32, **sheet.get("peak_flops", {})}}


def _base_of(sheet: Mapping[str, object], path: Path) -> Gpu | None:
    name = sheet.get("like")
    if name is None:
        return None
    if not isinstance(name, str) or GPUS.find(name) == path:
        raise UserError(f'{path}: like = {name!r}; name another GPU, as in like = "h100_sxm"')
    return load_gpu(name)


GPU_SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
"""Scales of a what-if GPU relative to its data sheet: arguments of `what_if`."""


def what_if(
    gpu: Gpu,
    *,
    sm_scale: float = 1.0,
    clock_scale: float = 1.0,
    bandwidth_scale: float = 1.0,
    l2_scale: float = 1.0,
) -> Gpu:
    """Return a what-if GPU with scaled SMs, clock, memory bandwidth and L2.

    Peak FLOP/s scale with SMs times clock. The SM count is rounded to a whole number.
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


def with_clock_share(gpu: Gpu, clock_share: float) -> Gpu:
    """Return a GPU at a fixed share of its clock, with the voltage of that clock.

    >>> half = with_clock_share(load_gpu("h100_sxm"), 0.5)
    >>> half.clock_share, half.peak("fp16") / load_gpu("h100_sxm").peak("fp16")
    (0.5, 0.5)
    """
    if clock_share == 1.0:
        return gpu
    slower = what_if(gpu, clock_scale=clock_share)
    return dataclasses.replace(slower, clock_share=gpu.clock_share * clock_share)


def at_full_clock(gpu: Gpu) -> Gpu:
    """Return a GPU at the full clock of its data sheet."""
    faster = what_if(gpu, clock_scale=1.0 / gpu.clock_share)
    return dataclasses.replace(faster, clock_share=1.0)


def base_gpu(gpu: Gpu) -> Gpu:
    """Return the base GPU of a what-if GPU, and other GPUs unchanged."""
    if not gpu.is_what_if:
        return gpu
    try:
        return load_gpu(gpu.measured_as)
    except UserError:  # a data sheet given by path is not in the catalog
        return gpu


MIG_PROFILES = Path(__file__).with_name("mig.toml")
MEMORY_SLICES, COMPUTE_SLICES = 8, 7


@dataclass(frozen=True)
class MigSlice:
    """A MIG profile of a GPU: SMs, and shares of the whole GPU."""

    sm_count: int
    memory_share: float  # of memory capacity, bandwidth and L2
    compute_share: float  # of compute slices, which determine the price


def mig_slice(gpu: Gpu, profile: str) -> MigSlice:
    """Return a MIG slice of a GPU by profile name without the memory part, such as `3g`.

    Raises:
        Infeasible: the MIG profiles of the GPU are unknown.
        UnknownNameError: the GPU has no such profile.

    >>> from simulators.catalog.gpu import load_gpu
    >>> mig_slice(load_gpu("a100_sxm"), "3g")
    MigSlice(sm_count=42, memory_share=0.5, compute_share=0.42857142857142855)
    """
    slices = read_toml(MIG_PROFILES).get(gpu.measured_as or gpu.name)
    if slices is None:
        raise Infeasible("no_mig_profiles", f"{gpu.name} has none in {MIG_PROFILES.name}")
    if profile not in slices:
        raise UnknownNameError("mig_slice", profile, tuple(slices))
    sms, memory = slices[profile]
    return MigSlice(sms, memory / MEMORY_SLICES, int(profile[:-1]) / COMPUTE_SLICES)


DIES = Path(__file__).with_name("dies.toml")


@dataclass(frozen=True, kw_only=True)
class Die:
    """A die as described by its maker. Products enable a part of its SMs and L2."""

    name: str
    node: str
    mm2: float
    transistors: float
    sms: float
    fp32: float  # lanes per SM
    fp64: float
    products: float  # 16-bit multiply-adds of an SM's matrix units per clock
    l2_mib: float
    hbm: float  # stacks
    gddr: float  # channels of 32 bits
    gpus: tuple[str, ...]


def dies() -> tuple[Die, ...]:
    """Return all dies with a known area, in the order of the file."""
    table = read_toml(DIES)["dies"]
    return tuple(
        Die(name=name, **{**facts, "gpus": tuple(facts["gpus"])}) for name, facts in table.items()
    )


def die_of(gpu: str) -> Die | None:
    """Return the die of a GPU by name, or None if the area is unknown.

    >>> die_of("h200_sxm").name, die_of("b200_sxm")
    ('gh100', None)
    """
    return next((die for die in dies() if gpu in die.gpus), None)


def cell_um2(node: str) -> float:
    """Return the area of an SRAM cell of a technology node, in um2."""
    return float(read_toml(DIES)["cell_um2"][node])
