"""Corrections of a formula by measured residuals: boosted trees, and grids of decode attention.

Boosted trees are monotone in every size:

    log t' = alpha log t + offset + sum over trees (monotone in every size and in t itself)

The trees cover effects that the tile model lacks: library heuristics, TLB range, throttling. No
tree falls when a size or the uncorrected time grows, so the corrected time does not fall either.
With `alpha` below one the trees can lower the slope. Outside the fitted range of times the slope is
one and the trees keep their last value; such rows are marked as extrapolated.

Decode attention: a library has a few decode kernels, each for a range of query heads per key head
(a packing). Within a kernel two numbers determine the time: pairs of request and key head, which
are the blocks, and tokens per block. A table holds the constants of the formula and a grid of log
residuals over powers of two of both numbers per packing, and a second grid of residuals by head
size and window. Nodes lie half an octave apart and never fall along either axis. Logarithms are
linear between nodes; beyond the last node time grows with the work. A transfer to another GPU
changes only the rates of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, kernel, matrix
from simulators.workload.operators import Attention

REFERENCE_TILE = 128.0
"""Side of the tile whose count is a feature: the largest square tile that all libraries have."""


LEAF_STEP = 1e-4
"""Step of the leaves in calibration files, which hold whole multiples."""


@dataclass(frozen=True)
class Correction:
    """Boosted trees as arrays: `2**depth - 1` splits and `2**depth` leaves each."""

    alpha: float
    offset: float
    log_t_lo: float
    log_t_hi: float
    depth: int
    features: NDArray[np.int64]
    thresholds: Floats
    values: Floats


def correction_from(table: Mapping[str, Any]) -> Correction:
    """Return the correction of a calibration table, which holds lists or lines of numbers.

    Leaves are whole multiples of `leaf_step`, or plain `values`.
    """
    step = float(table.get("leaf_step", LEAF_STEP)) if "leaves" in table else 1.0
    leaves = _numbers(table["leaves" if "leaves" in table else "values"], np.float64)
    return Correction(
        alpha=float(table["alpha"]),
        offset=float(table["offset"]),
        log_t_lo=float(table["log_t_lo"]),
        log_t_hi=float(table["log_t_hi"]),
        depth=int(table["depth"]),
        features=_numbers(table["features"], np.int64),
        thresholds=_numbers(table["thresholds"], np.float64),
        values=leaves * step,
    )


def _numbers(written: Any, kind: type) -> NDArray[Any]:
    return np.array(written.split() if isinstance(written, str) else written, kind)


def corrected(correction: Correction, features: Floats, seconds: Floats) -> Floats:
    """Return corrected seconds. `features` has one row per feature."""
    rows = np.concatenate([features, seconds.reshape(1, -1)])
    return _corrected(correction, rows).reshape(seconds.shape)


def corrected_seconds(correction: Correction, sizes: tuple[Floats, ...], seconds: Floats) -> Floats:
    """Return corrected seconds of products. `sizes`: m (of each product), n, k and batch."""
    flat = tuple(np.broadcast_to(size, seconds.shape).reshape(-1) for size in sizes)
    return _corrected(correction, features_of(flat, seconds.reshape(-1))).reshape(seconds.shape)


def features_of(sizes: tuple[Floats, ...], seconds: Floats) -> Floats:
    """Return the features of products, one per row; no feature falls when a size grows.

    The features are m, n, k, batch, m k, n k, m n, tiles of 128 x 128, and uncorrected seconds.
    """
    m, n, k, batch = (np.broadcast_to(size, seconds.shape) for size in sizes)
    tiles = batch * np.ceil(m / REFERENCE_TILE) * np.ceil(n / REFERENCE_TILE)
    return np.stack([m, n, k, batch, m * k, n * k, m * n, tiles, seconds])


def _corrected(correction: Correction, rows: Floats) -> Floats:
    """Return corrected seconds. `rows` has one feature per row; the last row has the seconds."""
    numbers = (correction.alpha, correction.offset, correction.log_t_lo, correction.log_t_hi)
    trees = (correction.depth, correction.features, correction.thresholds, correction.values)
    out = np.empty(rows.shape[1])
    _walk(rows, np.array(numbers), *trees, out)
    return out


BLOCK = 256
"""Points per block of the loop: their features stay in the first-level cache for all trees."""


@kernel(i8(matrix(f8), array(f8), i8, array(i8), *arrays(f8, 3)))
def _walk(
    rows: Floats,
    numbers: Floats,
    depth: int,
    features: Ints,
    thresholds: Floats,
    values: Floats,
    out: Floats,
) -> int:
    """Fill `out` with corrected seconds; a feature equal to a threshold takes the left branch.

    All splits of a complete binary tree are compared at once, so that the loop over points has no
    branches. The bits of the comparisons index the leaf.
    """
    alpha, offset, log_t_lo, log_t_hi = numbers[0], numbers[1], numbers[2], numbers[3]
    splits = 2**depth - 1
    trees = features.size // splits
    count = rows.shape[0]
    leaf_of = np.empty(2**splits, np.int64)
    for bits in range(leaf_of.size):
        node = 0
        for _ in range(depth):
            node = 2 * node + 1 + ((bits >> node) & 1)
        leaf_of[bits] = node - splits
    columns = np.zeros((count, BLOCK))
    went = np.empty(BLOCK, np.int64)
    leaves = np.empty(BLOCK)
    for start in range(0, out.size, BLOCK):
        size = min(BLOCK, out.size - start)
        for f in range(count):
            for j in range(size):
                columns[f, j] = rows[f, start + j]
        leaves[:] = 0.0
        for tree in range(trees):
            went[:] = 0
            for split in range(splits):
                column = columns[features[tree * splits + split]]
                threshold = thresholds[tree * splits + split]
                for j in range(BLOCK):
                    went[j] |= (column[j] > threshold) << split
            for j in range(size):
                leaves[j] += values[tree * (splits + 1) + leaf_of[went[j]]]
        for j in range(size):
            log_t = math.log(rows[count - 1, start + j])
            held = min(max(log_t, log_t_lo), log_t_hi)
            out[start + j] = math.exp(log_t - (1.0 - alpha) * held + offset + leaves[j])
    return 0


Numbers = Mapping[str, float]


class Form(Protocol):
    """A formula of decode attention on one GPU."""

    def __call__(self, attention: Attention, numbers: Numbers) -> Floats:
        """Return the seconds of decode steps with the given constants."""


PACKINGS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 48.0, 64.0, 96.0)
"""Upper limits of query heads per key head of each packing. A matrix instruction is padded to a
power of two of heads; beyond 32 a kernel runs several, so that 48 heads take 3/4 of 64 heads."""

LATENT_PACKINGS = (1.0, 16.0, 32.0, 64.0, 128.0)
"""The same limits for latent attention, whose heads all share one key."""

NOMINAL = (*PACKINGS, 128.0)
LATENT_NOMINAL = (*LATENT_PACKINGS, 256.0)
"""Query heads at which the formula of a packing's grid is evaluated."""

LATENT_WIDTH = 512.0 + 64.0
"""Numbers cached per token by latent attention, in every model so far."""

PARTS = 2
"""Nodes per octave. The slope can change within one, where keys outgrow L2 or blocks the SMs."""

STEP = 0.02
SIGNS = "".join(map(chr, [*range(35, 92), *range(93, 124)]))
"""Files hold residuals in steps of 2 %, one character each; the middle character is zero."""


@dataclass(frozen=True)
class Slice:
    """The decode kernels that share one grid."""

    head_dim: float  # 0: all head sizes and windows together
    window: float  # most keys per query; 0: no limit
    packing: int
    latent: bool

    @property
    def name(self) -> str:
        """The name of the grid in calibrations."""
        kind = "latent" if self.latent else "heads"
        return f"{kind} {self.head_dim:g} {self.window:g} {self.packing}"

    @property
    def shared(self) -> Slice:
        """The slice of all head sizes and windows."""
        return Slice(0.0, 0.0, self.packing, self.latent)


@dataclass(frozen=True)
class GridTable:
    """Constants of the formula by packing, and log residuals by slice.

    A grid has a row per power of two of pairs and a column per power of two of tokens. Residuals of
    a slice add to the residuals of its packing.
    """

    numbers: Mapping[int, Numbers]
    grids: Mapping[Slice, Floats]


def grids_from(table: Mapping[str, Any]) -> GridTable:
    """Return the grids of a calibration table, which holds them as lines of characters."""
    numbers = {
        int(packing): {name: float(value) for name, value in row.items()}
        for packing, row in table["numbers"].items()
    }
    grids = {}
    for name, text in table["grids"].items():
        kind, head_dim, window, packing = name.split()
        where = Slice(float(head_dim), float(window), int(packing), kind == "latent")
        grids[where] = _read(str(text))
    return GridTable(numbers, grids)


def _read(text: str) -> Floats:
    """Return a grid from lines of characters, one line per row; missing nodes are zero."""
    rows = text.split("|")
    grid = np.zeros((len(rows), max(map(len, rows))))
    for line, row in zip(grid, rows, strict=True):
        line[: len(row)] = [(SIGNS.index(sign) - len(SIGNS) // 2) * STEP for sign in row]
    return grid


def interpolated_s(table: GridTable, attention: Attention, form: Form) -> Floats:
    """Return the seconds of decode steps, one per row of the broadcast sizes."""
    found: Floats | None = None
    for where, rows, pairs, tokens in slices_of(attention):
        if found is None:
            found = np.empty(rows.shape)
        nodes = _nodes(table, where, attention, form)
        x, y = PARTS * np.log2(pairs[rows]), PARTS * np.log2(tokens[rows])
        found[rows] = np.exp(_bilinear(nodes, x, y))
    assert found is not None
    return found


def _nodes(table: GridTable, where: Slice, like: Attention, form: Form) -> Floats:
    """Return the monotone log seconds at the nodes of a slice's refined grid."""
    packing = min(table.numbers, key=lambda known: abs(known - where.packing))
    mine = Slice(where.head_dim, where.window, packing, where.latent)
    whole = Slice(where.head_dim, 0.0, packing, where.latent)
    residual = table.grids[mine.shared]
    own = table.grids.get(mine, table.grids.get(whole))
    if own is not None:
        residual = residual + own
    for axis in (0, 1):
        residual = _refined(residual, axis)
    sides = (np.exp2(np.arange(size) / PARTS) for size in residual.shape)
    pairs, tokens = np.meshgrid(*sides, indexing="ij")
    seconds = form(decode_steps_at(where, pairs, tokens, like), numbers=table.numbers[packing])
    return rising(np.log(seconds) + residual)


def _refined(grid: Floats, axis: int) -> Floats:
    """Return a grid that is refined along an axis by linear interpolation."""
    lines = np.moveaxis(grid, axis, 0)
    last = len(lines) - 1
    at = np.arange(PARTS * last + 1) / PARTS
    low = np.minimum(at.astype(np.int64), max(last - 1, 0))
    part = (at - low)[:, None]
    finer = (1.0 - part) * lines[low] + part * lines[np.minimum(low + 1, last)]
    return np.moveaxis(finer, 0, axis)


def slices_of(attention: Attention) -> Iterator[tuple[Slice, NDArray[np.bool_], Floats, Floats]]:
    """Yield each slice, the mask of its rows, and pairs and tokens per pair of all rows."""
    heads, kv_heads, head_dim, window = (
        np.asarray(x, np.float64)
        for x in (attention.heads, attention.kv_heads, attention.head_dim, attention.window)
    )
    latent = attention.latent
    packings = LATENT_PACKINGS if latent else PACKINGS
    packing = np.searchsorted(packings, heads if latent else heads / kv_heads)
    labels = np.stack([x.reshape(-1) for x in np.broadcast_arrays(head_dim, window, packing)])
    requests, seen, geometry = np.broadcast_arrays(
        np.maximum(np.asarray(attention.requests, np.float64), 1.0),
        context_of(attention),
        heads + kv_heads + head_dim + window,
    )
    tokens = np.maximum(seen / requests, 1.0)
    pairs = requests * np.maximum(kv_heads, 1.0)
    kinds = labels if labels.shape[1] == 1 else np.unique(labels, axis=1)
    for dim, width, pack in kinds.T.tolist():
        mine = (head_dim == dim) & (window == width) & (packing == pack)
        where = Slice(dim, width, int(pack), latent)
        yield where, np.broadcast_to(mine, geometry.shape), pairs, tokens


def context_of(attention: Attention) -> Floats:
    """Return the context length of the requests, including tokens outside the window."""
    keys = np.asarray(attention.kv_tokens, np.float64)
    return np.maximum(keys, np.asarray(attention.context_tokens, np.float64))


def decode_steps_at(where: Slice, pairs: Floats, tokens: Floats, like: Attention) -> Attention:
    """Return decode steps at the nodes of a slice, in the precisions of `like`."""
    seen = tokens if where.window == 0.0 else np.minimum(tokens, where.window)
    return Attention(
        name="nodes",
        phase="decode",
        requests=pairs,
        query_tokens=pairs,
        pairs=pairs * seen,
        kv_tokens=pairs * seen,
        context_tokens=pairs * tokens,
        heads=(LATENT_NOMINAL if where.latent else NOMINAL)[where.packing],
        kv_heads=LATENT_WIDTH / (2.0 * where.head_dim) if where.latent else 1.0,
        head_dim=where.head_dim,
        latent=where.latent,
        dtype=like.dtype,
        kv_dtype=like.kv_dtype,
        window=where.window,
    )


def rising(grid: Floats) -> Floats:
    """Return the least grid above `grid` that is monotone along both axes."""
    return np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)


def _bilinear(grid: Floats, x: Floats, y: Floats) -> Floats:
    """Return bilinear values of a grid; beyond the last nodes time grows with the work."""
    last_x, last_y = grid.shape[0] - 1, grid.shape[1] - 1
    octaves = (np.maximum(x - last_x, 0.0) + np.maximum(y - last_y, 0.0)) / PARTS
    x, y = np.clip(x, 0.0, last_x), np.clip(y, 0.0, last_y)
    i = np.minimum(x.astype(np.int64), max(last_x - 1, 0))
    j = np.minimum(y.astype(np.int64), max(last_y - 1, 0))
    u, v = x - i, y - j
    i1, j1 = np.minimum(i + 1, last_x), np.minimum(j + 1, last_y)
    low = (1.0 - v) * grid[i, j] + v * grid[i, j1]
    high = (1.0 - v) * grid[i1, j] + v * grid[i1, j1]
    return np.asarray((1.0 - u) * low + u * high + np.log(2.0) * octaves, np.float64)
