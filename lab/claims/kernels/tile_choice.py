"""Whether tiles are ranked as libraries and clocks rank them, with every board's own rows left out.

Profiles of fp32 products name the kernel that ran: its tile and into how many shares it split `k`.
No fit has read those names. Of two products of equal work, the one that took longer by its kernel
should be told to; and the tile that the library took should be among the best of those it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.lines import absent, at_most
from lab.tables.kernels.fp32_kernels import FAULTY, catalog_name
from lab.tables.rows import evenly, read_table
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price_call
from simulators.kernels.schedules import Schedule, held_to
from simulators.workload.operators import Gemm

PRODUCTS = "gpu_kernels/gemm.parquet"
COLUMNS = ("gpu", "split", "m", "n", "k", "latency_us", "tile_a", "tile_b", "grid_z")
MOST = 600
"""Products of a board, evenly spaced in its table: pairs grow with their square."""

ALIKE = np.log(1.1)
"""Work that differs by less is equal, and so are times."""

WRONG_BAR = 20.0
"""Percent of pairs that may be told wrongly; by chance it is half of them."""

BEST, LEAST_RUNS = 3, 5
"""Among the best so many tiles the library's should be, of those that it runs at least so often."""


@dataclass(frozen=True)
class Tiled:
    """Products of a board, with the rows, columns and shares that the library cut them by."""

    gpu: str
    sizes: tuple[Floats, Floats, Floats]
    seconds: Floats
    schedules: NDArray[np.int64]  # a row each: rows and columns of the tile, shares of k

    def seconds_by(self, schedule: Schedule, which: NDArray[np.bool_]) -> Floats:
        """Return what some of the products take with one schedule, by what other boards taught."""
        gpu = load_gpu(self.gpu)
        m, n, k = (size[which] for size in self.sizes)
        profile = held_to(profile_of(gpu, "zero_shot"), schedule)
        return price_call(Gemm(name="product", m=m, n=n, k=k, dtype="fp32"), gpu, profile).latency_s


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield both shares for every board."""
    if not (reference / PRODUCTS).is_file():
        yield absent("tiles", f"{PRODUCTS} is absent")
        return
    for board in _boards(reference):
        wrong, pairs = _pairs_told_wrongly(board)
        name = f"tiles, {board.gpu}, board left out"
        yield at_most(f"{name}: pairs of equal work told wrongly", wrong, WRONG_BAR, pairs)
        tiles = _library(board)
        if len(tiles) > BEST:
            missed, chance = _below_best(board, tiles), 100.0 * (1.0 - BEST / len(tiles))
            note = f"of {len(tiles)}; the limit is chance"
            line = f"{name}: the library's not among the best {BEST}"
            yield at_most(line, missed, chance, board.seconds.size, note)


def _boards(reference: Path) -> Iterator[Tiled]:
    table = read_table(reference / PRODUCTS, COLUMNS, op="linear")
    column = {name: table[name].to_numpy() for name in COLUMNS}
    for gpu in np.unique(column["gpu"]).tolist():
        name = catalog_name(gpu)
        mine = (column["gpu"] == gpu) & (column["tile_a"] > 0)
        for board, op, split in FAULTY:
            mine &= (board, op) != (name, "linear") or column["split"] != split
        if load_gpu(name).vendor != "nvidia":
            continue  # another library's names, whose grids follow other rules
        some = np.flatnonzero(mine)[evenly(int(mine.sum()), MOST)]
        m, n, k = (column[size][some].astype(np.float64) for size in ("m", "n", "k"))
        cut = np.stack([column[c][some] for c in ("tile_b", "tile_a", "grid_z")], axis=1)
        yield Tiled(name, (m, n, k), 1e-6 * column["latency_us"][some], cut.astype(np.int64))


def _pairs_told_wrongly(board: Tiled) -> tuple[float, int]:
    """Return the percent of pairs of equal work whose faster one is told slower, and how many."""
    told_s = np.zeros(board.seconds.size)
    for cut in np.unique(board.schedules, axis=0):
        which = (board.schedules == cut).all(axis=1)
        told_s[which] = board.seconds_by(Schedule(*cut.tolist()), which)
    one, other = np.triu_indices(board.seconds.size, 1)

    def gap(column: Floats) -> Floats:
        return np.asarray(np.log(column[one] / column[other]))

    measured = gap(board.seconds)
    apart = (np.abs(gap(np.prod(board.sizes, axis=0))) < ALIKE) & (np.abs(measured) > ALIKE)
    wrong = np.sign(gap(told_s)) != np.sign(measured)
    return 100.0 * float(np.mean(wrong[apart])), int(apart.sum())


def _library(board: Tiled) -> list[tuple[int, int]]:
    """Return the tiles that a board's library runs more than now and then."""
    tiles, runs = np.unique(board.schedules[:, :2], axis=0, return_counts=True)
    return [
        (int(m), int(n)) for (m, n), often in zip(tiles, runs, strict=True) if often >= LEAST_RUNS
    ]


def _below_best(board: Tiled, tiles: list[tuple[int, int]]) -> float:
    """Return the percent of products whose library's tile is none of the best, split as pays."""
    everything = np.ones(board.seconds.size, bool)
    seconds = np.stack([board.seconds_by(Schedule(m, n), everything) for m, n in tiles])
    chosen = (np.array(tiles)[:, None, :] == board.schedules[None, :, :2]).all(axis=2)
    known = chosen.any(axis=0)
    taken_s = seconds[:, known][chosen[:, known].argmax(axis=0), np.arange(known.sum())]
    return 100.0 * float(np.mean((seconds[:, known] < taken_s).sum(axis=0) >= BEST))
