"""Monotone boosted trees that correct a formula towards measurements.

    log t' = alpha log t + offset + sum over trees (monotone in every feature and in t itself)

Gradient boosting (Friedman, 2001) with histogram splits and a pseudo-Huber loss. A split is made
only if its right value is at least its left one, and their midpoint bounds all values further down,
as in LightGBM's basic monotone constraints. The trees are complete, as
`simulators.kernels.corrections` walks them: LightGBM and scikit-learn grow others, which
would change every stored tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.core.jit import Floats, Ints, arrays, f8, i8, kernel, matrix
from simulators.kernels.corrections import LEAF_STEP, Correction

DEEPEST, BINS, LEAF_ROWS, SHRINKAGE, WIDTH = 4, 64, 3.0, 0.2, 0.05
"""Deepest tree that is walked, thresholds per feature, least rows of a leaf, learning rate, and the
residual beyond which the loss is linear."""


def tree_table(
    correction: Correction, *, leaf_step: float = 0.0, digits: int = 4, value_digits: int = 3
) -> dict[str, Any]:
    """Return a correction as a calibration stores it.

    Args:
        correction: the correction.
        leaf_step: leaves are stored in multiples of it; 0: as values.
        digits: significant digits of thresholds.
        value_digits: significant digits of values.
    """
    table: dict[str, Any] = {
        **{name: getattr(correction, name) for name in ("alpha", "offset", "log_t_lo", "log_t_hi")},
        "depth": correction.depth,
        "features": " ".join(map(str, correction.features.tolist())),
        "thresholds": " ".join(f"{x:.{digits}g}" for x in correction.thresholds.tolist()),
    }
    if not leaf_step:
        values = " ".join(f"{x:.{value_digits}g}" for x in correction.values.tolist())
        return table | {"values": values}
    leaves = " ".join(f"{x:.0f}" for x in np.rint(correction.values / leaf_step).tolist())
    return table | ({} if leaf_step == LEAF_STEP else {"leaf_step": leaf_step}) | {"leaves": leaves}


def fit_correction(
    features: Floats,
    seconds: Floats,
    measured_s: Floats,
    *,
    alpha: float,
    trees: int,
    depth: int,
    lean: float = 0.0,
    weights: Floats | None = None,
) -> Correction:
    """Return trees that carry `seconds ** alpha` to what was measured.

    Args:
        features: a row per feature; `seconds` is added as the last.
        seconds: of the formula.
        measured_s: what they should be.
        alpha: slope left to the formula, so that trees can bend downwards too.
        trees: how many.
        depth: of each, at most `DEEPEST`.
        lean: as in `boosted`.
        weights: of the rows; equal by default.
    """
    assert depth <= DEEPEST
    log_t = np.log(seconds)
    target = np.log(measured_s) - alpha * log_t
    offset = float(np.median(target))
    chosen, thresholds, values = boosted(
        np.concatenate([features, seconds[None]]).T.copy(),
        target - offset,
        np.ones(seconds.size) if weights is None else weights,
        trees=trees,
        depth=depth,
        lean=lean,
    )
    ends = float(log_t.min()), float(log_t.max())
    return Correction(alpha, offset, *ends, depth, chosen, thresholds, values)


def boosted(
    features: Floats,
    target: Floats,
    weights: Floats,
    *,
    trees: int,
    depth: int,
    lean: float = 0.0,
) -> tuple[Ints, Floats, Floats]:
    """Return feature and threshold of every split and the value of every leaf, tree by tree.

    Args:
        features: a row per measurement.
        target: what the sums of leaves should be.
        weights: of the rows.
        trees: how many.
        depth: of each.
        lean: how much more a sum above its target costs than one below: 0 for equal costs of
            logarithms, 1 for equal costs of relative errors.
    """
    edges = [_edges(column) for column in features.T]
    pairs = zip(edges, features.T, strict=True)
    binned = np.stack([np.searchsorted(edge, column) for edge, column in pairs], axis=1)
    splits, leaves = 2**depth - 1, 2**depth
    chosen = np.zeros((trees, splits), np.int64)
    thresholds = np.full((trees, splits), np.inf)
    values = np.zeros((trees, leaves))
    fitted = np.zeros(target.size)
    bins = 1 + max((e.size for e in edges), default=0)
    for tree in range(trees):
        miss = fitted - target
        pull = (
            weights * np.exp(lean * np.clip(miss, -1.0, 1.0)) / np.sqrt(1.0 + (miss / WIDTH) ** 2)
        )
        at = np.zeros(splits, np.int64)
        leaf = np.zeros(target.size, np.int64)
        _grow(binned, pull * miss, pull, bins, depth, chosen[tree], at, values[tree], leaf)
        values[tree] *= SHRINKAGE
        fitted += values[tree][leaf]
        for split in range(splits):
            if at[split] >= 0:
                thresholds[tree, split] = edges[chosen[tree, split]][at[split]]
    return chosen.reshape(-1), thresholds.reshape(-1), values.reshape(-1)


def _edges(column: Floats) -> Floats:
    """Return thresholds between distinct values, at quantiles where there are many."""
    distinct = np.unique(column)
    if distinct.size > BINS:
        distinct = np.unique(np.quantile(column, np.linspace(0.0, 1.0, BINS)))
    between: Floats = 0.5 * (distinct[1:] + distinct[:-1])
    return between


@kernel(i8(matrix(i8), *arrays(f8, 2), i8, i8, *arrays(i8, 2), *arrays(f8, 1), *arrays(i8, 1)))
def _grow(
    binned: Ints,
    slope: Floats,
    pull: Floats,
    bins: int,
    depth: int,
    feature: Ints,
    at: Ints,
    values: Floats,
    leaf: Ints,
) -> int:
    """Grow one complete tree, level by level; a node that cannot be split sends all rows left."""
    rows, count = binned.shape
    splits = 2**depth - 1
    low = np.full(2 * splits + 1, -1e30)
    high = np.full(2 * splits + 1, 1e30)
    node = np.zeros(rows, np.int64)
    for level in range(depth + 1):
        first, width = 2**level - 1, 2**level
        slopes = np.zeros((width, count, bins))
        pulls = np.zeros((width, count, bins))
        for i in range(rows):
            for f in range(count):
                slopes[node[i] - first, f, binned[i, f]] += slope[i]
                pulls[node[i] - first, f, binned[i, f]] += pull[i]
        for q in range(width):
            here = first + q
            total_slope, total_pull = slopes[q, 0].sum(), pulls[q, 0].sum()
            value = min(max(-total_slope / (total_pull + 1.0), low[here]), high[here])
            if level == depth:
                values[q] = value
                continue
            best = 0.0
            feature[here], at[here] = 0, -1
            left_value, right_value = value, value
            for f in range(count):
                left_slope, left_pull = 0.0, 0.0
                for b in range(bins - 1):
                    left_slope += slopes[q, f, b]
                    left_pull += pulls[q, f, b]
                    right_slope, right_pull = total_slope - left_slope, total_pull - left_pull
                    if left_pull < LEAF_ROWS or right_pull < LEAF_ROWS:
                        continue
                    x = min(max(-left_slope / (left_pull + 1.0), low[here]), high[here])
                    y = min(max(-right_slope / (right_pull + 1.0), low[here]), high[here])
                    if x > y:
                        continue
                    gain = (
                        total_slope * value
                        + 0.5 * (total_pull + 1.0) * value * value
                        - left_slope * x
                        - 0.5 * (left_pull + 1.0) * x * x
                        - right_slope * y
                        - 0.5 * (right_pull + 1.0) * y * y
                    )
                    if gain > best + 1e-9:
                        best, left_value, right_value = gain, x, y
                        feature[here], at[here] = f, b
            middle = 0.5 * (left_value + right_value)
            left, right = 2 * here + 1, 2 * here + 2
            low[left], high[left] = low[here], middle if at[here] >= 0 else high[here]
            low[right], high[right] = middle if at[here] >= 0 else low[here], high[here]
        if level < depth:
            for i in range(rows):
                here = node[i]
                right_side = at[here] >= 0 and binned[i, feature[here]] > at[here]
                node[i] = 2 * here + (2 if right_side else 1)
    for i in range(rows):
        leaf[i] = node[i] - splits
    return 0
