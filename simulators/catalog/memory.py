"""DRAM types, and memory levels of a device: caches, chiplets, pools, PIM.

How much of its rate a DRAM can sustain follows from its timings: all but refresh where rows are
read in order, and what four activates in a window allow where every access opens a row (Jacob, Ng
and Wang, "Memory systems", 2008). Both are bounds, no measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.sheet import fill, positive
from simulators.core.errors import UserError
from simulators.core.folder import MEMORIES, read_toml

ACTIVATES = 4
"""Rows of a channel that may be opened within one window."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A type of DRAM; figures are per channel (HBM: pseudo-channel)."""

    name: str
    pin_bits_per_s: float
    channel_bits: int
    burst_bytes: int  # of one access
    window_s: float  # in which four rows may be opened: tFAW
    refresh_s: float  # of all banks: tRFC
    refresh_every_s: float  # tREFI
    energy_j_per_bit: float | None = None  # of device and interface; None: no source states it
    source: str

    @property
    def streaming(self) -> float:
        """Share of the rate while rows are read in order: all but refresh."""
        return 1.0 - self.refresh_s / self.refresh_every_s

    @property
    def random(self) -> float:
        """Share of the rate while every access opens a row of its own.

        >>> load_memory("hbm2e").random < load_memory("hbm2e").streaming
        True
        """
        rate = self.pin_bits_per_s * self.channel_bits / 8.0
        return self.streaming * min(1.0, ACTIVATES * self.burst_bytes / self.window_s / rate)


def load_memory(name: str) -> Memory:
    """Return the DRAM of that name, or of a TOML path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file lacks a field, or has one that means nothing.
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

    `cache` holds what operators hand to each other; `chiplet` is a link of each die, which `share`
    of its data crosses; `pool` is memory behind a link, such as CXL, a part of `hbm_bytes` over
    which pages are spread; `pim` computes inside the memory, at the rate of its banks.
    """

    kind: str
    bytes_per_s: float  # of a chiplet: of each die, per direction
    bytes: int = 0  # of a cache or a pool
    count: int = 1  # of chiplets
    share: float | None = None  # of a die's data that crosses; None: all but its own part
    flops: float = 0.0  # of PIM, in any format

    @property
    def crossing(self) -> float:
        """Share of a die's data that lies behind its link."""
        return 1.0 - 1.0 / self.count if self.share is None else self.share


def check_level(level: MemoryLevel, hbm_bytes: int, path: Path) -> None:
    """Raise a `UserError` unless a level of a sheet means something."""
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
