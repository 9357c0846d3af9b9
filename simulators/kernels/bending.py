"""Trees that bend a formula towards measurements, over any columns that a law lets only rise.

    log t' = alpha log t + offset + sum over trees (monotone in every feature and in t itself)

The same idea as the correction of matrix products, for families whose features are their own. As
no tree falls when a feature grows, and no feature falls when a size grows, neither does `t'`.
Beyond the times of the fit the slope is one again, and the trees hold their last value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints, array, arrays, f8, i8, kernel, matrix
from simulators.kernels.boosting import boosted
from simulators.kernels.correction import BLOCK, Correction

Columns = NDArray[np.float64]

PIECES = ("features", "thresholds", "values")
"""Arrays of a correction, which a calibration holds as one line of numbers each."""


def bend_from(table: Mapping[str, Any]) -> Correction:
    """Return the correction a calibration holds as lines of numbers."""
    features, thresholds, values = (str(table[name]).split() for name in PIECES)
    return Correction(
        alpha=float(table["alpha"]),
        offset=float(table["offset"]),
        log_t_lo=float(table["log_t_lo"]),
        log_t_hi=float(table["log_t_hi"]),
        depth=int(table["depth"]),
        features=np.array(features, np.int64),
        thresholds=np.array(thresholds, np.float64),
        values=np.array(values, np.float64),
    )


def bend_lines(bend: Correction) -> list[str]:
    """Return what a calibration holds of a correction."""
    return [
        f"alpha = {bend.alpha}",
        f"offset = {bend.offset:.6g}",
        f"log_t_lo = {bend.log_t_lo:.6g}",
        f"log_t_hi = {bend.log_t_hi:.6g}",
        f"depth = {bend.depth}",
        f'features = "{" ".join(map(str, bend.features.tolist()))}"',
        f'thresholds = "{" ".join(f"{x:.5g}" for x in bend.thresholds.tolist())}"',
        f'values = "{" ".join(f"{x:.3g}" for x in bend.values.tolist())}"',
    ]


def fit_bend(
    features: Columns,
    seconds: Columns,
    measured_s: Columns,
    *,
    alpha: float,
    trees: int,
    depth: int,
    lean: float = 0.0,
) -> Correction:
    """Return trees that carry `seconds ** alpha` to what was measured.

    Args:
        features: one column per row of the matrix; `seconds` is added as the last.
        seconds: of the formula.
        measured_s: what they should be.
        alpha: slope left to the formula, so that trees can bend downwards too.
        trees: how many.
        depth: of each.
        lean: towards the smaller of two values that one shape was measured at, as in `boosted`.
    """
    log_t = np.log(seconds)
    target = np.log(measured_s) - alpha * log_t
    offset = float(np.median(target))
    chosen, thresholds, values = boosted(
        np.concatenate([features, seconds[None]]).T.copy(),
        target - offset,
        np.ones(seconds.size),
        trees=trees,
        depth=depth,
        lean=lean,
    )
    return Correction(
        alpha=alpha,
        offset=offset,
        log_t_lo=float(log_t.min()),
        log_t_hi=float(log_t.max()),
        depth=depth,
        features=chosen,
        thresholds=thresholds,
        values=values,
    )


def bent_seconds(bend: Correction, features: Columns, seconds: Columns) -> Columns:
    """Return the corrected seconds of rows, given one feature per row of the matrix."""
    bends = np.array([bend.alpha, bend.offset, bend.log_t_lo, bend.log_t_hi])
    columns = np.ascontiguousarray(np.concatenate([features, seconds[None]]))
    out = np.empty(seconds.size)
    _walk(columns, bends, bend.depth, bend.features, bend.thresholds, bend.values, out)
    return out


@kernel(i8(matrix(f8), array(f8), i8, array(i8), *arrays(f8, 3)))
def _walk(
    rows: Floats,
    bends: Floats,
    depth: int,
    features: Ints,
    thresholds: Floats,
    values: Floats,
    out: Floats,
) -> int:
    """Send every row down every complete binary tree; a row equal to a threshold goes left.

    All splits of a tree are compared at once, as in the correction of matrix products.
    """
    alpha, offset, log_t_lo, log_t_hi = bends[0], bends[1], bends[2], bends[3]
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
