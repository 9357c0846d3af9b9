"""Corrections by boosted trees that are monotone in every size.

    log t' = alpha log t + offset + sum over trees (monotone in every size and in t itself)

The trees cover what the tile model does not: library heuristics, TLB reach, throttling. No tree
falls when a size or the uncorrected time grows, so the corrected time does not either. `alpha`
below one lets trees bend downwards. Outside the fitted range of times the slope is one and the
trees keep their last value; such rows are marked as extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, kernel, matrix

REFERENCE_TILE = 128.0
"""The tile whose count is a feature: the largest square one that all libraries have."""


LEAF_STEP = 1e-4
"""Files hold leaves in whole steps of a hundredth of a percent, which keeps their order."""


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
    """Return the correction a calibration holds, as lists or as lines of numbers.

    Leaves are whole steps, which keep their order, or plain `values`.
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
    """Return corrected seconds, given a matrix with one row per feature."""
    rows = np.concatenate([features, seconds.reshape(1, -1)])
    return _corrected(correction, rows).reshape(seconds.shape)


def corrected_seconds(correction: Correction, sizes: tuple[Floats, ...], seconds: Floats) -> Floats:
    """Return corrected seconds of products of the given m, n, k and batch (m of each product)."""
    flat = tuple(np.broadcast_to(size, seconds.shape).reshape(-1) for size in sizes)
    return _corrected(correction, features_of(flat, seconds.reshape(-1))).reshape(seconds.shape)


def features_of(sizes: tuple[Floats, ...], seconds: Floats) -> Floats:
    """Return features, a row each, none of which ever falls when a size grows.

    They are m, n, k, batch, m k, n k, m n, tiles of 128 x 128, and the uncorrected seconds.
    """
    m, n, k, batch = (np.broadcast_to(size, seconds.shape) for size in sizes)
    tiles = batch * np.ceil(m / REFERENCE_TILE) * np.ceil(n / REFERENCE_TILE)
    return np.stack([m, n, k, batch, m * k, n * k, m * n, tiles, seconds])


def _corrected(correction: Correction, rows: Floats) -> Floats:
    """Return corrected seconds, given features row by row and the seconds as the last row."""
    numbers = (correction.alpha, correction.offset, correction.log_t_lo, correction.log_t_hi)
    trees = (correction.depth, correction.features, correction.thresholds, correction.values)
    out = np.empty(rows.shape[1])
    _walk(rows, np.array(numbers), *trees, out)
    return out


BLOCK = 256
"""Rows walked together: their features stay in the first-level cache for all trees."""


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
    """Send every row down every complete binary tree; a row equal to a threshold goes left.

    All splits of a tree are compared at once, so that the loop over rows has no branches; the bits
    then say which leaf was reached.
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
