"""Calibrations of kernels: forms, monotone trees, and the entries of a GPU's file.

A form is a formula of a kernel's time; `forms.toml` has the start and bounds of its numbers. Trees
correct the form towards measurements:

    log t' = alpha log t + offset + sum over trees (monotone in every feature and in t itself)

They are fitted by gradient boosting (Friedman, 2001) with histogram splits and a pseudo-Huber loss.
A split is made only if its right value is at least its left one, and their midpoint bounds all
values further down, as in LightGBM's basic monotone constraints. The trees are complete, as
`simulators.kernels.corrections` walks them: LightGBM and scikit-learn grow others, which
would change every stored tree.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, rounded
from lab.fits.methods import band_of
from lab.tables.rows import BANDED, Rows, mape
from planning.calibrate.kernels import fit_named
from simulators.core.jit import Floats, Ints, arrays, f8, i8, kernel, matrix
from simulators.evidence.intervals import WIDEST
from simulators.kernels.corrections import LEAF_STEP, SIGNS, STEP, Correction, GridTable
from simulators.kernels.families.family import Entry
from simulators.kernels.tiling import Tile

Numbers = Mapping[str, float]

RANGE = 4.0
"""Without bounds of its own, a number stays within a factor of 55 of its start."""


@dataclass(frozen=True)
class CalibrationForm:
    """Starting values of the numbers of a formula, and their bounds as logarithms."""

    start: dict[str, float]
    low: Floats
    high: Floats

    def fit(
        self,
        seconds_of: Callable[[dict[str, float]], Floats],
        measured_s: Floats,
        *,
        ridge: float,
        near: Numbers | None = None,
    ) -> dict[str, float]:
        """Return the fitted numbers.

        Args:
            seconds_of: predicts seconds from the numbers.
            measured_s: measured seconds.
            ridge: weight of the start, in rows.
            near: numbers to start from and be held near, in place of the form's own.
        """
        near = near or self.start
        start = np.clip(np.log([near[name] for name in self.start]), self.low, self.high)
        return fit_named(
            seconds_of,
            list(self.start),
            start,
            measured_s,
            low=self.low,
            high=self.high,
            ridge=ridge,
        )


@functools.cache
def form(name: str) -> CalibrationForm:
    """Return a form of `forms.toml`."""
    numbers = tomllib.loads(Path(__file__).with_name("forms.toml").read_text(encoding="utf-8"))[
        name
    ]
    rows = {key: one if isinstance(one, dict) else {"start": one} for key, one in numbers.items()}
    start = {key: row["start"] for key, row in rows.items()}
    range_ = float(np.exp(RANGE))
    low = [row.get("least", row["start"] / range_) for row in rows.values()]
    high = [row.get("most", row["start"] * range_) for row in rows.values()]
    return CalibrationForm(start, np.log(low), np.log(high))


DEEPEST, BINS, LEAF_ROWS, SHRINKAGE, WIDTH = 4, 64, 3.0, 0.2, 0.05
"""Deepest tree that is walked, thresholds per feature, least rows of a leaf, learning rate, and the
residual beyond which the loss is linear."""


def relative_tiles(
    found: Mapping[Any, float], tiles: Sequence[Tile]
) -> tuple[float, tuple[Tile, ...]]:
    """Return the highest of fitted efficiencies by shape, and the tiles relative to it."""
    best = max(found[tile.m, tile.n] for tile in tiles)
    return best, tuple(replace(tile, efficiency=found[tile.m, tile.n] / best) for tile in tiles)


def tile_table(tiles: Sequence[Tile]) -> dict[str, Any]:
    """Return tiles as a calibration stores them: heights, widths and efficiencies, then splits."""
    efficiencies = {(tile.m, tile.n): tile.efficiency for tile in tiles}
    return {
        "splits": sorted({tile.splits for tile in tiles}),
        "tiles": [[m, n, round(efficiency, 4)] for (m, n), efficiency in efficiencies.items()],
    }


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


SHAPE_SPLIT = "half of the shapes, by a hash of the shape; errors are of the other half"


@dataclass(frozen=True)
class FittedEntry:
    """The fitted entry of a kernel, the number of rows, and errors on held-out shapes."""

    name: str
    entry: Entry
    rows: int
    error: float


def plain_entry(rows: Rows, numbers: Mapping[str, float]) -> Entry:
    """Return an entry of a form's numbers alone."""
    return Entry(rows.framework, numbers, None, None, WIDEST, rows.gpu, calibrated=True)


def judged(
    entry: Entry, parts: Sequence[Rows], rows: int, predicted_s: Callable[[Rows, Entry], Floats]
) -> FittedEntry:
    """Return an entry with its interval, from three quarters of the held-out rows, and its error.

    Args:
        entry: as fitted.
        parts: all rows of the kernel, held out or not.
        rows: their number, as the calibration states it.
        predicted_s: predicts rows by an entry.
    """
    unseen = [part.where(part.held_out) for part in parts]
    predicted = np.concatenate([predicted_s(part, entry) for part in unseen])
    measured = np.concatenate([part.seconds for part in unseen])
    banded = np.concatenate([part.bucket for part in unseen]) < BANDED
    entry = replace(entry, band=band_of(predicted[banded], measured[banded]))
    return FittedEntry(parts[0].name, entry, rows, mape(predicted, measured))


def entries(
    file: Path,
    done: Sequence[FittedEntry],
    tables: Sequence[str],
    split: str = SHAPE_SPLIT,
    **trees: Any,
) -> Calibration:
    """Return the calibration of one GPU; `trees` are options of `tree_table`."""
    return Calibration(
        file=file,
        content={"entry": {fitted.name: _entry_table(fitted, trees) for fitted in done}},
        style=".6g",
        tables=tables,
        rows=sum(fitted.rows for fitted in done),
        split=split,
        errors=[fitted.error for fitted in done],
    )


def _entry_table(fitted: FittedEntry, trees: Mapping[str, Any]) -> dict[str, Any]:
    entry = fitted.entry
    table: dict[str, Any] = {
        "numbers": rounded(entry.numbers, ".5g"),
        "held_out_mape": round(fitted.error, 4),
        "band": rounded(vars(entry.band), ".4f"),
    }
    if entry.correction is not None:
        table["correction"] = tree_table(entry.correction, **trees)
    if entry.grid is not None:
        table["grid"] = grid_table(entry.grid)
    return table


def grid_table(table: GridTable) -> dict[str, Any]:
    """Return grids as a calibration stores them: a character per knot, rows divided by bars."""
    middle = len(SIGNS) // 2
    grids = {}
    for where, grid in table.grids.items():
        signs = np.clip(np.rint(grid / STEP).astype(np.int64) + middle, 0, len(SIGNS) - 1)
        first, *others = ["".join(SIGNS[sign] for sign in row) for row in signs.tolist()]
        grids[where.name] = "|".join([first, *(row.rstrip(SIGNS[middle]) for row in others)])
    return {"numbers": rounded(table.numbers, ".4g"), "grids": grids}
