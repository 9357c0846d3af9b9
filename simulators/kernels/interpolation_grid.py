"""The time of a decode step, interpolated between the knots of a measured grid.

A library serves decode by a few kernels, each made for so many query heads per key head. Within one
of them two numbers decide: how many (request, key head) pairs there are, which are the blocks, and
how many keys each has to walk. So a table is one grid of log times over powers of two of both, per
head size, window and kernel. Queries beyond the widest kernel's heads run head by head, and there
pairs of request and query head are what counts.

Between knots logarithms are linear, beyond the last ones time grows with the work. Grids never fall
along either side. On another board, or on a what-if one, each knot moves as the formula does, and
the grid is kept from falling again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.workload.operators import Attention

Form = Callable[[Attention], Floats]
"""Seconds of a decode step by a fitted form."""

PACKINGS = (1.0, 8.0, 16.0, 32.0)
"""Query heads per key head that kernels are made for; above the last each head is on its own."""

LATENT_PACKINGS = (16.0, 32.0, 64.0, 128.0)
"""The same of latent attention, whose heads all share one key."""

NOMINAL = (1.0, 8.0, 16.0, 32.0, 64.0)
LATENT_NOMINAL = (16.0, 32.0, 64.0, 128.0, 128.0)
"""Query heads a grid stands for, by packing."""

LATENT_WIDTH = 512.0 + 64.0
"""Numbers cached per token of latent attention, in every model with it so far."""

STEP = 0.005
"""Files hold log microseconds in steps of half a percent."""


@dataclass(frozen=True)
class Slice:
    """What one grid stands for."""

    head_dim: float
    window: float  # keys a query sees at most; 0: all
    packing: int
    latent: bool

    @property
    def name(self) -> str:
        """What a calibration calls this grid."""
        kind = "latent" if self.latent else "heads"
        return f"{kind} {self.head_dim:g} {self.window:g} {self.packing}"

    @property
    def unpacked(self) -> bool:
        """Whether there are more query heads to a key head than any kernel packs."""
        return not self.latent and self.packing == len(PACKINGS)


@dataclass(frozen=True)
class GridTable:
    """Log seconds of each slice: a row per power of two of pairs, a column per one of keys."""

    grids: Mapping[Slice, Floats]
    alone: bool  # whether heads beyond the widest packing each walk the keys by themselves


def grids_from(table: Mapping[str, Any]) -> GridTable:
    """Return the grids a calibration holds as lines of whole numbers."""
    grids = {}
    for name, text in table["grids"].items():
        kind, head_dim, window, packing = name.split()
        rows = [line.split() for line in str(text).split("|")]
        steps = np.array(rows, np.float64)
        where = Slice(float(head_dim), float(window), int(packing), kind == "latent")
        grids[where] = steps * STEP + np.log(1e-6)
    return GridTable(grids, bool(table["alone"]))


def grid_lines(knots: GridTable) -> list[str]:
    """Return what a calibration holds of the grids."""
    lines = [f"alone = {str(knots.alone).lower()}"]
    for where, grid in knots.grids.items():
        steps = np.rint((grid - np.log(1e-6)) / STEP).astype(np.int64)
        text = "|".join(" ".join(map(str, row)) for row in steps.tolist())
        lines.append(f'grids."{where.name}" = "{text}"')
    return lines


def interpolated_s(table: GridTable, attention: Attention, here: Form, there: Form) -> Floats:
    """Return the seconds of each row of a decode step; nan where there is no grid for it.

    A grid that stands for other steps than these is moved by what the form says of both: on another
    GPU, or in latent attention of another width.

    Args:
        table: the grids.
        attention: rows to price.
        here: seconds of the form on the GPU asked about.
        there: and on the one that was measured; `here` again if that is the same.
    """
    found: Floats | None = None
    for where, rows, pairs, keys in sliced(attention, alone=table.alone):
        if found is None:
            found = np.full(rows.shape, np.nan)
        measured = _measured(where, table)
        if measured is None:
            continue
        grid = table.grids[measured]
        alike = replace(where, head_dim=measured.head_dim)
        if here is not there or alike != where:
            asked, timed = (
                nominal(each, grid.shape, attention, alone=table.alone) for each in (where, alike)
            )
            grid = rising(grid + np.log(here(asked) / there(timed)))
        found[rows] = np.exp(_between(grid, np.log2(pairs[rows]), np.log2(keys[rows])))
    assert found is not None
    return found


def _measured(where: Slice, table: GridTable) -> Slice | None:
    """Return whose grid serves a slice: its own, one without a window, of the nearest latent."""
    if where in table.grids:
        return where
    if (whole := replace(where, window=0.0)) in table.grids:
        return whole
    alike = [s for s in table.grids if where.latent and s == replace(where, head_dim=s.head_dim)]
    return min(alike, key=lambda s: abs(s.head_dim - where.head_dim), default=None)


def sliced(
    attention: Attention, *, alone: bool
) -> Iterator[tuple[Slice, NDArray[np.bool_], Floats, Floats]]:
    """Yield each slice, the rows that fall on it, and pairs and keys of all rows."""
    heads, kv_heads, head_dim, window = (
        np.asarray(x, np.float64)
        for x in (attention.heads, attention.kv_heads, attention.head_dim, attention.window)
    )
    latent = attention.latent
    packings = LATENT_PACKINGS if latent else PACKINGS
    packing = np.searchsorted(packings, heads if latent else heads / kv_heads)
    labels = np.stack([x.reshape(-1) for x in np.broadcast_arrays(head_dim, window, packing)])
    requests, kv, geometry = np.broadcast_arrays(
        np.maximum(np.asarray(attention.requests, np.float64), 1.0),
        np.asarray(attention.kv_tokens, np.float64),
        heads + kv_heads + head_dim + window,
    )
    keys = np.maximum(kv / requests, 1.0)
    kinds = labels if labels.shape[1] == 1 else np.unique(labels, axis=1)
    for dim, seen, pack in kinds.T.tolist():
        where = Slice(dim, seen, int(pack), latent)
        mine = (head_dim == dim) & (window == seen) & (packing == pack)
        pairs = requests * (heads if alone and where.unpacked else np.maximum(kv_heads, 1.0))
        yield where, np.broadcast_to(mine, geometry.shape), pairs, keys


def nominal(where: Slice, shape: tuple[int, ...], like: Attention, *, alone: bool) -> Attention:
    """Return the decode steps a grid's knots stand for, in the precisions of another."""
    heads = (LATENT_NOMINAL if where.latent else NOMINAL)[where.packing]
    pairs, keys = np.meshgrid(np.exp2(np.arange(shape[0])), np.exp2(np.arange(shape[1])))
    requests = (pairs / heads if alone and where.unpacked else pairs).T
    kv_heads = LATENT_WIDTH / (2.0 * where.head_dim) if where.latent else 1.0
    kv_tokens = requests * keys.T
    return Attention(
        name="knots",
        phase="decode",
        requests=requests,
        query_tokens=requests,
        pairs=kv_tokens,
        kv_tokens=kv_tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=where.head_dim,
        latent=where.latent,
        dtype=like.dtype,
        kv_dtype=like.kv_dtype,
        window=where.window,
    )


def rising(grid: Floats) -> Floats:
    """Return the least grid above this one that falls along neither side."""
    return np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)


def _between(grid: Floats, x: Floats, y: Floats) -> Floats:
    """Return the bilinear value; beyond the last knots time grows with the work."""
    last_x, last_y = grid.shape[0] - 1, grid.shape[1] - 1
    beyond = np.log(2.0) * (np.maximum(x - last_x, 0.0) + np.maximum(y - last_y, 0.0))
    x, y = np.clip(x, 0.0, last_x), np.clip(y, 0.0, last_y)
    i = np.minimum(x.astype(np.int64), max(last_x - 1, 0))
    j = np.minimum(y.astype(np.int64), max(last_y - 1, 0))
    u, v = x - i, y - j
    i1, j1 = np.minimum(i + 1, last_x), np.minimum(j + 1, last_y)
    low = (1.0 - v) * grid[i, j] + v * grid[i, j1]
    high = (1.0 - v) * grid[i1, j] + v * grid[i1, j1]
    return np.asarray((1.0 - u) * low + u * high + beyond, np.float64)
