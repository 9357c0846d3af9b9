"""Trees that bend a formula towards measurements, over any columns that a law lets only rise.

    log t' = alpha log t + offset + sum over trees (monotone in every feature and in t itself)

The same idea as the correction of matrix products, for families whose features are their own. As
no tree falls when a feature grows, and no feature falls when a size grows, neither does `t'`.
Beyond the times of the fit the slope is one again, and the trees hold their last value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lab.fits.methods.boosting import boosted
from simulators.kernels.monotone_correction import LEAF_STEP, Correction

Columns = NDArray[np.float64]

DEEPEST = 4
"""A walker tabulates the ways down a tree by the outcomes of all its splits: 31 are too many."""


def bend_lines(bend: Correction, leaf_step: float = LEAF_STEP, digits: int = 4) -> list[str]:
    """Return what a calibration holds of a correction, leaves in steps, as finely as asked."""
    leaves = np.rint(bend.values / leaf_step).astype(int).tolist()
    return [
        *slope_lines(bend),
        *split_lines(bend, digits),
        *([] if leaf_step == LEAF_STEP else [f"leaf_step = {leaf_step}"]),
        f'leaves = "{" ".join(map(str, leaves))}"',
    ]


def slope_lines(bend: Correction) -> list[str]:
    """Return what a calibration holds of a correction besides its trees."""
    return [
        f"alpha = {bend.alpha}",
        f"offset = {bend.offset:.6g}",
        f"log_t_lo = {bend.log_t_lo:.6g}",
        f"log_t_hi = {bend.log_t_hi:.6g}",
        f"depth = {bend.depth}",
    ]


def split_lines(bend: Correction, digits: int) -> list[str]:
    """Return the splits of a correction's trees, as lines of numbers."""
    return [
        f'features = "{" ".join(map(str, bend.features.tolist()))}"',
        f'thresholds = "{" ".join(f"{x:.{digits}g}" for x in bend.thresholds.tolist())}"',
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
    weights: Columns | None = None,
) -> Correction:
    """Return trees that carry `seconds ** alpha` to what was measured.

    Args:
        features: one column per row of the matrix; `seconds` is added as the last.
        seconds: of the formula.
        measured_s: what they should be.
        alpha: slope left to the formula, so that trees can bend downwards too.
        trees: how many.
        depth: of each, at most `DEEPEST`.
        lean: towards the smaller of two values that one shape was measured at, as in `boosted`.
        weights: of the rows; alike unless given.
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
