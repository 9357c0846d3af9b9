"""Tiles of fp32 products as libraries and clocks rank them, with every GPU's own rows left out.

Profiles of fp32 products name the kernel that ran: its tile and into how many parts it split `k`.
No fit has read those names. Of two products of equal work, the one whose kernel took longer should
be predicted to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lab.claims.predictions import columns, together
from lab.tables.kernels.fp32_kernels import FAULTY, catalog_name
from lab.tables.rows import evenly, read_table
from simulators.catalog.gpu import load_gpu
from simulators.core.jit import Floats
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price_call
from simulators.kernels.simulator import Schedule, held_to
from simulators.workload.operators import Gemm

PRODUCTS = "gpu_kernels/gemm.parquet"
COLUMNS = ("gpu", "split", "m", "n", "k", "latency_us", "tile_a", "tile_b", "grid_z")
MOST = 600
"""Products of a GPU, evenly spaced in its table: pairs grow with their square."""

ALIKE = np.log(1.1)
"""Work that differs by less is equal, and so are times."""


@dataclass(frozen=True)
class Tiled:
    """Products of a GPU, with the rows, columns and shares that the library cut them by."""

    gpu: str
    sizes: tuple[Floats, Floats, Floats]
    seconds: Floats
    schedules: NDArray[np.int64]  # a row each: rows and columns of the tile, shares of k

    def seconds_by(self, schedule: Schedule, which: NDArray[np.bool_]) -> Floats:
        """Return seconds of selected products under one schedule, fitted to other GPUs."""
        gpu = load_gpu(self.gpu)
        m, n, k = (size[which] for size in self.sizes)
        profile = held_to(profile_of(gpu, "zero_shot"), schedule)
        return price_call(Gemm(name="product", m=m, n=n, k=k, dtype="fp32"), gpu, profile).latency_s


def pairs(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured ratio of times of two products of equal work, by GPU."""
    return together(
        columns(predicted=predicted, measured=measured, gpu=one.gpu)
        for one in _measured_gpus(reference)
        for predicted, measured in [_ratios(one)]
    )


def _measured_gpus(reference: Path) -> Iterator[Tiled]:
    table = read_table(reference / PRODUCTS, COLUMNS, op="linear")
    column = {name: table[name].to_numpy() for name in COLUMNS}
    for gpu in np.unique(column["gpu"]).tolist():
        name = catalog_name(gpu)
        mine = (column["gpu"] == gpu) & (column["tile_a"] > 0)
        for gpu, op, split in FAULTY:
            mine &= (gpu, op) != (name, "linear") or column["split"] != split
        if load_gpu(name).vendor != "nvidia":
            continue  # another library's names, whose grids follow other rules
        some = np.flatnonzero(mine)[evenly(int(mine.sum()), MOST)]
        m, n, k = (column[size][some].astype(np.float64) for size in ("m", "n", "k"))
        cut = np.stack([column[c][some] for c in ("tile_b", "tile_a", "grid_z")], axis=1)
        yield Tiled(name, (m, n, k), 1e-6 * column["latency_us"][some], cut.astype(np.int64))


def _ratios(gpu: Tiled) -> tuple[Floats, Floats]:
    """Return the ratios of all pairs of equal work that took unequal times."""
    predicted_s = np.zeros(gpu.seconds.size)
    for cut in np.unique(gpu.schedules, axis=0):
        which = (gpu.schedules == cut).all(axis=1)
        predicted_s[which] = gpu.seconds_by(Schedule(*cut.tolist()), which)
    one, other = np.triu_indices(gpu.seconds.size, 1)
    predicted, measured, work = (
        v[one] / v[other] for v in (predicted_s, gpu.seconds, np.prod(gpu.sizes, axis=0))
    )
    apart = (np.abs(np.log(work)) < ALIKE) & (np.abs(np.log(measured)) > ALIKE)
    return predicted[apart], measured[apart]
