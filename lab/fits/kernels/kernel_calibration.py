"""Calibrations of kernels: forms, monotone trees, and the entries of a GPU's file.

A form is a formula of a kernel's time; `forms.toml` has the start and bounds of its numbers. Trees
correct the form towards measurements:

    log t' = alpha log t + offset + sum over trees (monotone in every feature and in t itself)

Libraries for boosting grow other trees, which would change every stored one;
docs/explanation/kernels.md says how these are fitted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, declared, rounded, settings
from lab.fits.methods import band_of
from lab.tables.rows import BANDED, Rows, mape
from planning.calibrate.kernels import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.folder import read_toml
from simulators.core.jit import Floats, Ints
from simulators.evidence.intervals import WIDEST
from simulators.kernels.corrections import LEAF_STEP, SIGNS, STEP, Correction, GridTable
from simulators.kernels.families.family import Entry
from simulators.kernels.tiling import Tile

Numbers = Mapping[str, float]

CONFIG = settings(__file__)


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
        ridge: float = CONFIG.ridge,
        near: Numbers | None = None,
    ) -> dict[str, float]:
        """Return the fitted numbers. `ridge`: weight, in rows, of the start, or of `near`."""
        near = near or self.start
        start = np.clip(np.log([near[name] for name in self.start]), self.low, self.high)
        names, low, high = list(self.start), self.low, self.high
        return fit_named(seconds_of, names, start, measured_s, low=low, high=high, ridge=ridge)


@functools.cache
def form(name: str) -> CalibrationForm:
    """Return a form of `forms.toml`."""
    numbers = read_toml(Path(__file__).with_name("forms.toml"))[name]
    rows = {key: one if isinstance(one, dict) else {"start": one} for key, one in numbers.items()}
    start = {key: row["start"] for key, row in rows.items()}
    range_ = float(np.exp(CONFIG.range))
    low = [row.get("least", row["start"] / range_) for row in rows.values()]
    high = [row.get("most", row["start"] * range_) for row in rows.values()]
    return CalibrationForm(start, np.log(low), np.log(high))


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

    `digits` of thresholds and `value_digits` of leaves are significant. With a `leaf_step`, leaves
    are multiples of it.
    """
    names = ("alpha", "offset", "log_t_lo", "log_t_hi", "depth")
    table: dict[str, Any] = {
        **{name: getattr(correction, name) for name in names},
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
    depth: int,
    weights: Floats | None = None,
    **boosting: Any,
) -> Correction:
    """Return trees that map `seconds ** alpha` of the formula to measured seconds.

    `features` has a row per feature; `seconds` are added as the last. An `alpha` below 1 lets the
    trees lower times too. `boosting`: arguments of `boosted`.
    """
    log_t = np.log(seconds)
    target = np.log(measured_s) - alpha * log_t
    offset = float(np.median(target))
    chosen, thresholds, values = boosted(
        np.concatenate([features, seconds[None]]).T.copy(),
        target - offset,
        np.ones(seconds.size) if weights is None else weights,
        depth=depth,
        **boosting,
    )
    ends = float(log_t.min()), float(log_t.max())
    return Correction(alpha, offset, *ends, depth, chosen, thresholds, values)


def boosted(
    features: Floats, target: Floats, weights: Floats, *, trees: int, depth: int, lean: float = 0.0
) -> tuple[Ints, Floats, Floats]:
    """Return feature and threshold of every split and the value of every leaf, tree by tree.

    `features` has a row per measurement; the sum of its leaves approximates its `target`. `lean` is
    the relative cost of sums above their target: 0 for equal costs of logarithms, 1 for equal costs
    of relative errors.
    """
    edges = [_edges(column) for column in features.T]
    pairs = zip(edges, features.T, strict=True)
    binned = np.stack([np.searchsorted(edge, column) for edge, column in pairs], axis=1)
    bins = 1 + max(1, *(edge.size for edge in edges))
    table = np.full((len(edges), bins), np.inf)  # thresholds; the last, infinite, is of no split
    for row, edge in zip(table, edges, strict=True):
        row[: edge.size] = edge
    fitted, grown = np.zeros(target.size), []
    for _ in range(trees):
        miss = fitted - target
        lopsided = np.exp(lean * np.clip(miss, -1.0, 1.0))
        pull = weights * lopsided / np.sqrt(1.0 + (miss / CONFIG.width) ** 2)
        feature, at, values, leaf = _grow(binned, pull * miss, pull, bins, depth)
        values *= CONFIG.shrinkage
        fitted += values[leaf]
        grown.append((feature, table[feature, at], values))
    chosen, thresholds, leaves = map(np.concatenate, zip(*grown, strict=True))
    return chosen, thresholds, leaves


def _edges(column: Floats) -> Floats:
    """Return thresholds between distinct values, at quantiles where there are many."""
    distinct = np.unique(column)
    if distinct.size > CONFIG.bins:
        distinct = np.unique(np.quantile(column, np.linspace(0.0, 1.0, CONFIG.bins)))
    between: Floats = 0.5 * (distinct[1:] + distinct[:-1])
    return between


def _best_split(gain: Floats) -> int:
    best, found = 0.0, -1
    highest = np.flatnonzero(gain == np.maximum.accumulate(gain))
    for position, value in zip(highest.tolist(), gain[highest].tolist(), strict=True):
        if value > best + CONFIG.equal_gain:
            best, found = value, position
    return found


def _grow(
    binned: Ints, slope: Floats, pull: Floats, bins: int, depth: int
) -> tuple[Ints, Ints, Floats, Ints]:
    """Return feature and bin of each split, the value of each leaf, and the leaf of each row.

    The tree is complete: a node that cannot be split, with bin -1, sends all rows left.
    """

    def leaf(slope: Floats, pull: Floats) -> Floats:
        return np.clip(-slope / (pull + 1.0), low[:, None, None], high[:, None, None])

    def loss(slope: Floats, pull: Floats, value: Floats) -> Floats:
        return slope * value + 0.5 * (pull + 1.0) * value * value

    rows, count = binned.shape
    node, low, high = np.zeros(rows, np.int64), np.full(1, -np.inf), np.full(1, np.inf)
    features, ats = [], []
    for level in range(depth + 1):
        shape = (2**level, count, bins)
        cell = ((node[:, None] * count + np.arange(count)) * bins + binned).reshape(-1)
        slopes, pulls = (
            np.bincount(cell, np.repeat(column, count), np.prod(shape))
            .reshape(shape)
            .cumsum(axis=2)
            for column in (slope, pull)
        )
        total_slope, total_pull = slopes[:, :1, -1:], pulls[:, :1, -1:]
        value = leaf(total_slope, total_pull)
        if level == depth:
            break
        left, left_pull = slopes[:, :, :-1], pulls[:, :, :-1]
        right, right_pull = total_slope - left, total_pull - left_pull
        x, y = leaf(left, left_pull), leaf(right, right_pull)
        gain = loss(total_slope, total_pull, value)
        gain = gain - loss(left, left_pull, x) - loss(right, right_pull, y)
        gain[(left_pull < CONFIG.leaf_rows) | (right_pull < CONFIG.leaf_rows) | (x > y)] = 0.0
        first = np.array([_best_split(of_node) for of_node in gain.reshape(shape[0], -1)])
        is_split = first >= 0
        feature = np.where(is_split, first // (bins - 1), 0)
        at = np.where(is_split, first % (bins - 1), -1)
        nodes = np.arange(shape[0])
        middle = 0.5 * (x[nodes, feature, at] + y[nodes, feature, at])
        low = np.stack([low, np.where(is_split, middle, low)], axis=1).reshape(-1)
        high = np.stack([np.where(is_split, middle, high), high], axis=1).reshape(-1)
        is_right = is_split[node] & (binned[np.arange(rows), feature[node]] > at[node])
        node = 2 * node + is_right
        features.append(feature)
        ats.append(at)
    return np.concatenate(features), np.concatenate(ats), value.reshape(-1), node


@dataclass(frozen=True)
class FittedEntry:
    """The fitted entry of a kernel, the number of rows, and errors on held-out shapes."""

    name: str
    entry: Entry
    rows: int
    error: float


def plain_entry(rows: Rows, numbers: Mapping[str, float]) -> Entry:
    """Return an entry with the numbers of a form, without trees and grids."""
    return Entry(rows.framework, numbers, None, None, WIDEST, rows.gpu, calibrated=True)


def judged(
    entry: Entry, parts: Sequence[Rows], rows: int, predicted_s: Callable[[Rows, Entry], Floats]
) -> FittedEntry:
    """Return an entry with its interval, from three quarters of the held-out rows, and its error.

    `parts`: all rows of the kernel, held out or not. `rows`: their number in the calibration.
    """
    unseen = [part.where(part.held_out) for part in parts]
    predicted = np.concatenate([predicted_s(part, entry) for part in unseen])
    measured = np.concatenate([part.seconds for part in unseen])
    banded = np.concatenate([part.bucket for part in unseen]) < BANDED
    entry = replace(entry, band=band_of(predicted[banded], measured[banded]))
    return FittedEntry(parts[0].name, entry, rows, mape(predicted, measured))


def best_form(
    names: Sequence[str], rows: Rows, seconds_of: Callable[[dict[str, float]], Floats]
) -> tuple[str, dict[str, float]]:
    """Return the first form, or a later one with much less error, and its fitted numbers."""
    fitted = [form(name).fit(seconds_of, rows.seconds) for name in names]
    errors = [float(np.mean(np.abs(np.log(seconds_of(one) / rows.seconds)))) for one in fitted]
    best = int(np.argmin(errors))
    best = best if errors[best] < CONFIG.much_less * errors[0] else 0
    return names[best], fitted[best]


def fit_plain(
    name: str,
    rows: Rows,
    form_seconds: Callable[[Any, Gpu, Numbers], Floats],
    *,
    ridge: float = CONFIG.ridge,
    fixed: Numbers | None = None,
) -> FittedEntry:
    """Return the entry of a kernel by a form alone, whose `fixed` numbers are not fitted."""
    gpu, seen, given = load_gpu(rows.gpu), rows.where(~rows.held_out), fixed or {}
    operator = seen.operator
    numbers = form(name).fit(
        lambda numbers: form_seconds(operator, gpu, {**numbers, **given}), seen.seconds, ridge=ridge
    )
    return judged(
        plain_entry(rows, {**numbers, **given}),
        [rows],
        len(seen),
        lambda part, entry: form_seconds(part.operator, gpu, entry.numbers),
    )


def entries(
    fit: str,
    gpu: str,
    done: Sequence[FittedEntry],
    *,
    leaf_step: float = LEAF_STEP,
    digits: int = 4,
    **fields: Any,
) -> Calibration:
    """Return the calibration of a GPU with the fitted entries of its kernels."""
    tables: dict[str, dict[str, Any]] = {}
    for fitted in done:
        entry = fitted.entry
        table = tables[fitted.name] = {
            "numbers": rounded(entry.numbers, ".5g"),
            "held_out_mape": round(fitted.error, 4),
            "band": rounded(vars(entry.band), ".4f"),
        }
        if entry.correction is not None:
            table["correction"] = tree_table(entry.correction, leaf_step=leaf_step, digits=digits)
        if entry.grid is not None:
            table["grid"] = grid_table(entry.grid)
    rows, errors = sum(fitted.rows for fitted in done), [fitted.error for fitted in done]
    return declared(fit, name=gpu, content={"entry": tables}, rows=rows, errors=errors, **fields)


def grid_table(table: GridTable) -> dict[str, Any]:
    """Return grids as a calibration stores them: a character per node, rows divided by bars."""
    middle = len(SIGNS) // 2
    grids = {}
    for where, grid in table.grids.items():
        signs = np.clip(np.rint(grid / STEP).astype(np.int64) + middle, 0, len(SIGNS) - 1)
        first, *others = ["".join(SIGNS[sign] for sign in row) for row in signs.tolist()]
        grids[where.name] = "|".join([first, *(row.rstrip(SIGNS[middle]) for row in others)])
    return {"numbers": rounded(table.numbers, ".4g"), "grids": grids}
