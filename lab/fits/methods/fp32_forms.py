"""Fits of fp32 operator classes: measured rows of a GPU to the numbers of a profile.

Full: tables, rates, and a correction where cross-validation over shapes says it helps. Few-shot:
three numbers, held near what other GPUs suggest by the weight of a row or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lab.fits.methods.monotone_trees import fit_correction
from lab.tables.rows import Bools, Floats, Rows, fraction, mape
from planning.calibrate.kernels import fit_few as fit_few
from planning.calibrate.kernels import (
    fit_log,
    fit_named,
    longest_dispatch,
    seconds_by,
    with_numbers,
    with_rates,
)
from planning.calibrate.kernels import rates_of as rates_of
from simulators.catalog.gpu import Gpu
from simulators.kernels.corrections import features_of
from simulators.kernels.families.gemm import algorithm_seconds, implicit_sizes, sizes_of
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import (
    GemmRates,
    Profile,
    ReductionRates,
    Sizes,
    product_seconds,
)
from simulators.kernels.tiling import Tile, four_norm
from simulators.workload.operators import Convolution, Gemm

Fit = Callable[[Rows, Gpu, Profile], Profile]
Bend = tuple[float, float]

RANDOM_ROWS = 3000
"""Random-shaped rows a fit looks at; more of them say nothing new."""

RANDOM_WEIGHT, LAYER_WEIGHT = 0.2, 1000.0
"""Of a random-shaped row, and of all layer-shaped rows together: models are made of the latter."""

FOLDS = 5
"""Of the cross-validation that decides on a correction and measures the bands."""

TREES, DEPTH = 64, 3
BENDS = tuple((alpha, lean) for alpha in (0.8, 0.9, 1.0) for lean in (0.0, 1.0))
"""Corrections that are tried, besides none: a smaller `alpha` leaves too much to the trees."""

WORTHWHILE = 0.97
"""A correction must lower the cross-validated error by 3 % of itself to be kept."""

CLEAR_OF_DISPATCH = 1.5
"""Calls this many times longer than an empty one say something about the kernel."""

ALIGNED = 4.0
"""Widths that are multiples of this run the vectorised row kernels, as all layers' widths do."""


def fit_full(rows: Rows, gpu: Gpu, under: Profile) -> Profile:
    """Return `under` with the rates of this class fitted to all of `rows`, correction included."""
    if rows.kernel not in under.gemm:
        return _fit_stream(rows, gpu, under)
    plain = _fit_gemm(rows, gpu, under)
    bend = _best_bend(rows, gpu, under)
    return plain if bend is None else _corrected(rows, gpu, plain, bend)


def cross_validated_s(rows: Rows, gpu: Gpu, under: Profile, fit: Fit, folds: int = FOLDS) -> Floats:
    """Return predictions for each row by fits that did not see its shape."""
    out = np.full(len(rows), np.nan)
    for aside in _folds(rows, folds):
        profile = fit(rows.where(~aside), gpu, under)
        out[aside] = call_seconds(rows.where(aside).operator, gpu, profile)
    return out


def _folds(rows: Rows, folds: int) -> Iterator[Bools]:
    """Yield the rows that are set aside together: whole shapes, each once."""
    fold = np.floor(fraction(rows.group, salt=1) * folds)
    for number in range(folds):
        aside = fold == number
        if aside.any() and not aside.all():
            yield aside


def _thinned(rows: Rows) -> tuple[Rows, Floats]:
    """Return the rows a fit looks at, and their weights."""
    keep = np.ones(len(rows), bool)
    random = np.flatnonzero(~rows.from_layers)
    if random.size > RANDOM_ROWS:
        drawn = np.random.default_rng(np.random.SeedSequence(0)).permutation(random)
        keep[drawn[RANDOM_ROWS:]] = False
    kept = rows.where(keep)
    layers = np.count_nonzero(kept.from_layers)
    weights = np.where(kept.from_layers, LAYER_WEIGHT / max(int(layers), 1), RANDOM_WEIGHT)
    return kept, weights if layers else np.ones(len(kept))


def _fit_gemm(rows: Rows, gpu: Gpu, under: Profile) -> Profile:
    """Fit the table of tiles, the tail, the prologue, bandwidth and dispatch of one class."""
    kept, weights = _thinned(rows)
    rates = under.gemm[rows.kernel]
    shapes = list(dict.fromkeys((tile.m, tile.n) for tile in rates.tiles))
    splits = list(dict.fromkeys(tile.splits for tile in rates.tiles))

    def candidate(p: Floats) -> GemmRates:
        efficiency = np.exp(p[: len(shapes)])
        best = float(efficiency.max())
        tiles = tuple(
            Tile(m, n, float(e) / best, s)
            for s in splits
            for (m, n), e in zip(shapes, efficiency, strict=True)
        )
        odds, prologue, bandwidth, dispatch_s = p[len(shapes) :].tolist()
        return replace(
            rates,
            tiles=tiles,
            compute=best,
            tail=float(1.0 / (1.0 + np.exp(-odds))),
            prologue=float(np.exp(prologue)),
            bandwidth=float(np.exp(bandwidth)),
            dispatch_s=float(np.exp(dispatch_s)),
            correction=None,
            calibrated=True,
        )

    efficiency = [rates.compute * tile.efficiency for tile in rates.tiles[: len(shapes)]]
    start = np.concatenate(
        [
            np.log(np.minimum(efficiency, 1.0)),
            [np.log(rates.tail / (1.0 - rates.tail)), np.log(rates.prologue)],
            np.log([rates.bandwidth, rates.dispatch_s]),
        ]
    )
    low = np.concatenate([np.full(len(shapes), np.log(0.02)), [-3.0, -2.0, np.log(0.2), -16.0]])
    high = np.concatenate([np.zeros(len(shapes)), [5.0, 6.0, 0.0, longest_dispatch(rows, under)]])
    fitted = fit_log(
        lambda p: _called_s(candidate(p), kept, gpu),
        start,
        kept.seconds,
        weights=weights,
        ridge=np.ones(start.size),
        bounds=(low, high),
    )
    seen = tuple((float(size.min()), float(size.max())) for size in _sizes(rows))
    return with_rates(under, rows.kernel, replace(candidate(fitted), seen=seen))


def _called_s(rates: GemmRates, rows: Rows, gpu: Gpu) -> Floats:
    return four_norm(_running_s(rates, rows, gpu), rates.dispatch_s)


def _sizes(rows: Rows) -> Sizes:
    """Return the sizes of the products behind the rows."""
    operator = rows.operator
    if isinstance(operator, Convolution):
        return implicit_sizes(operator)
    assert isinstance(operator, Gemm)
    return sizes_of(operator)


def _running_s(rates: GemmRates, rows: Rows, gpu: Gpu) -> Floats:
    """Return the uncorrected seconds of products of one class, whatever the other class says."""
    operator = rows.operator
    if isinstance(operator, Convolution):
        return algorithm_seconds(operator, gpu, rates)
    assert isinstance(operator, Gemm)
    return product_seconds(rates, sizes_of(operator), gpu, "fp32")


def _best_bend(rows: Rows, gpu: Gpu, under: Profile) -> Bend | None:
    """Return the correction that helps most on shapes it has not seen, if any does."""
    rows, _ = _thinned(rows)
    judged = rows.from_layers if rows.from_layers.any() else np.ones(len(rows), bool)
    blind: dict[Bend | None, Floats] = {bend: np.full(len(rows), np.nan) for bend in (None, *BENDS)}
    for aside in _folds(rows, FOLDS):
        plain = _fit_gemm(rows.where(~aside), gpu, under)
        for bend, out in blind.items():
            profile = plain if bend is None else _corrected(rows.where(~aside), gpu, plain, bend)
            out[aside] = call_seconds(rows.where(aside).operator, gpu, profile)
    errors = {}
    for bend, out in blind.items():
        known = judged & np.isfinite(out)
        errors[bend] = mape(out[known], rows.seconds[known])
    best = min(BENDS, key=lambda bend: errors[bend])
    return best if errors[best] < WORTHWHILE * errors[None] else None


def _corrected(rows: Rows, gpu: Gpu, plain: Profile, bend: Bend) -> Profile:
    """Return the profile with boosted trees on what the tile model misses of this class."""
    kept, weights = _thinned(rows)
    rates = plain.gemm[rows.kernel]
    alpha, lean = bend
    sizes = _sizes(kept)
    clear = kept.seconds > CLEAR_OF_DISPATCH * rates.dispatch_s
    model_s = _running_s(rates, kept, gpu)[clear]
    running_s = (kept.seconds[clear] ** 4 - rates.dispatch_s**4) ** 0.25
    features = features_of(tuple(size[clear] for size in sizes), model_s)[:-1]
    correction = fit_correction(
        features,
        model_s,
        running_s,
        alpha=alpha,
        trees=TREES,
        depth=DEPTH,
        lean=lean,
        weights=weights[clear],
    )
    return with_rates(plain, rows.kernel, replace(rates, correction=correction))


def _fit_stream(rows: Rows, gpu: Gpu, under: Profile) -> Profile:
    """Fit every number of a pointwise or row-reduction class."""
    rates = rates_of(under, rows.kernel)
    aligned = rows.sizes["cols"] % ALIGNED == 0
    kept, weights = _thinned(rows.where(aligned) if isinstance(rates, ReductionRates) else rows)
    names = [name for name in rates.__dataclass_fields__ if name != "calibrated"]
    start = np.log([getattr(rates, name) for name in names])
    high = np.array([0.0 if name == "bandwidth" else np.inf for name in names])
    fitted = fit_named(
        lambda numbers: seconds_by(kept, gpu, under, numbers),
        names,
        np.minimum(start, high),
        kept.seconds,
        low=start - 4.0,
        high=np.minimum(start + 4.0, high),
        ridge=0.5,
        weights=weights,
    )
    return with_numbers(under, rows.kernel, fitted)
