"""A matrix product with a chosen tile instead of the tile that the library selects.

A schedule is the rows and columns of the tile that a block computes, and into how many shares the
inner products are split. Compilers that search for schedules (Ansor, Zheng et al., OSDI 2020; TLP,
Zhai et al., ASPLOS 2023) rank such choices by a model of their cost; here the tile model of
`tiling.py` ranks them, with what a GPU sustains. How well a tile's inner loop feeds the multipliers
is that of the tabulated tile of the nearest shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from simulators.catalog.gpu import Gpu
from simulators.kernels.profile import GemmRates, ProductRates, Profile, TensorRates
from simulators.kernels.tiling import Tile
from simulators.workload.precision import BYTES

R = TypeVar("R", bound=ProductRates)

REGISTER_BYTES = {"nvidia": 262_144.0, "amd": 524_288.0}
"""Of an SM, 65,536 of 32 bits since Kepler (CUDA programming guide); of a CU of CDNA (AMD, "CDNA
architecture")."""

LEAST_K = 8.0
"""Steps of `k` that a block loads at least, as fp32 kernels do."""

BUFFERS = 2.0
"""Strips of `k` that a block holds: one is multiplied while the next one is loaded."""


@dataclass(frozen=True)
class Schedule:
    """How a product is cut; 0: as its library does."""

    tile_m: int = 0
    tile_n: int = 0
    split_k: int = 0

    @property
    def is_chosen(self) -> bool:
        """Whether anything of it is the user's."""
        return self != Schedule()

    def refusal(self, gpu: Gpu, dtype: str) -> str:
        """Return why no block of an SM runs it; empty if one does."""
        if self.tile_m <= 0 or self.tile_n <= 0 or self.split_k < 0:
            return "tile_incomplete: tile_m and tile_n are chosen together; split_k goes with them"
        if not gpu.validated or gpu.vendor not in REGISTER_BYTES:
            return f"tile_unknown: of kernels on {gpu.name} nothing is known"
        sums, registers = 4.0 * self.tile_m * self.tile_n, REGISTER_BYTES[gpu.vendor]
        if sums >= registers:
            return f"tile_exceeds_registers: sums take {sums:,.0f} bytes of {registers:,.0f}"
        strips = BUFFERS * (self.tile_m + self.tile_n) * LEAST_K * BYTES[dtype]
        if strips > gpu.sram_bytes_per_sm:
            return f"tile_exceeds_sram: strips take {strips:,.0f} of {gpu.sram_bytes_per_sm:,.0f}"
        return ""


def held_to(profile: Profile, schedule: Schedule) -> Profile:
    """Return the profile of a GPU with this tile for all products."""
    gemm: dict[str, GemmRates] = {n: _by_one(r, schedule) for n, r in profile.gemm.items()}
    tensor: dict[str, TensorRates] = {n: _by_one(r, schedule) for n, r in profile.tensor.items()}
    return replace(profile, gemm=gemm, tensor=tensor)


def _by_one(rates: R, schedule: Schedule) -> R:
    """Return rates that know a single tile, in as many shares as are said or as any is cut into."""
    near = min(rates.tiles, key=lambda tile: _distance(tile, schedule))
    splits = {tile.splits for tile in rates.tiles}
    chosen = (schedule.split_k,) if schedule.split_k else tuple(sorted(splits))
    m, n = schedule.tile_m, schedule.tile_n
    return replace(rates, tiles=tuple(Tile(m, n, near.efficiency, s) for s in chosen))


def _distance(tile: Tile, schedule: Schedule) -> tuple[float, float]:
    """Return how unlike a tile is, in octaves of its sides, then of its area."""
    m, n = math.log2(tile.m / schedule.tile_m), math.log2(tile.n / schedule.tile_n)
    return abs(m) + abs(n), abs(m + n)
