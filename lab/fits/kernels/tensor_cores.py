"""Fit tensor-core products to loops timed on the GPU.

For each GPU, framework and kind of product: a few numbers and a table of tile efficiencies by
robust least squares on logarithms, then monotone trees on what is left. A fifth of the fitted
weight matrices, set aside, chooses how much of the formula's slope is kept and gives the interval;
the held-out quarter judges. Few inner lengths of weight-only products were timed, so inner lengths
left out give their interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, chosen, gpu_of, rounded
from lab.fits.methods.forms import form
from lab.fits.methods.held_out import band_of
from lab.fits.methods.monotone_trees import fit_correction, tree_table
from lab.tables import tensor_kernels
from lab.tables.rows import LOWER_QUARTER, Bools, Floats, Rows, fraction, group_of, mape, read_table
from lab.tables.tensor_kernels import HEADS, LAYER_PROFILES, LAYER_SPLIT, read_layer_products
from planning.calibrate.kernels import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.checks import Check
from simulators.core.errors import UserError
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.kernels.corrections import features_of
from simulators.kernels.levels import MEASURED, NUMBERS, WEIGHT_ONLY
from simulators.kernels.profile import TENSOR_TILES, TensorRates, product_seconds
from simulators.kernels.tiling import Tile

FOLDER = CALIBRATIONS / "tensor"
OWN = Path("catalog") / "kernels" / "tensor"
IN_LAYERS = ("rtx_4090",)
"""GPUs whose products were timed only in the layers of an engine."""

LEAST_MATRICES, LEAST_ROWS = 8, 100
"""With fewer matrices each is set aside in turn; with fewer rows a kind is not fitted."""

FORMULA_ROWS, ASIDE = 3000, 0.2
"""Rows that the formula is fitted to, and part of the fitted matrices set aside."""

TURNS, TURN_ROWS = 5, 2500
"""Parts of the inner lengths of weight-only products, left out in turn, and rows drawn for them."""

TREES, DEPTH, ALPHAS = 64, 3, (0.4, 0.6, 0.8, 1.0)
"""Trees, and candidates for the part of the formula's slope that is kept."""

EFFICIENCIES = (0.02, 1.3)
SHAPES = tuple(dict.fromkeys((tile.m, tile.n) for tile in TENSOR_TILES))


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    rows = tensor_kernels.read_tensor_rows(reference, tensor_kernels.PRODUCERS)
    for name in chosen(only, [*(part.gpu for part in rows), *IN_LAYERS]):
        if name not in IN_LAYERS:
            parts = [part for part in rows if part.gpu == name]
            yield _fit_gpu(
                load_gpu(name),
                parts,
                (tensor_kernels.PRODUCTS, tensor_kernels.LATENT_TABLE),
                tensor_kernels.PRODUCT_SPLIT,
            )
        elif layers := read_layer_products(reference, name):
            yield _fit_gpu(load_gpu(name), layers, (LAYER_PROFILES, HEADS), LAYER_SPLIT)


def fit_measured(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield the calibration of a user's own GPU from a file of its measurements."""
    gpu = gpu_of(device)
    found = tensor_kernels.own_products(read_table(measured, ("op", "latency_us")), gpu.name)
    parts = [part for part in found if len(part) >= LEAST_ROWS]
    if not parts:
        counts = ", ".join(f"{len(part)} of {part.dtype}" for part in found) or "none"
        raise UserError(
            f"{measured}: a kind of products needs {LEAST_ROWS} rows of 'gemm'; it has {counts}"
        )
    yield _fit_gpu(gpu, parts, (measured,), tensor_kernels.PRODUCT_SPLIT)


def _fit_gpu(
    gpu: Gpu, parts: Sequence[Rows], tables: Sequence[str | Path], split: str
) -> Calibration:
    fitted = [fit_tensor(part.where(~part.held_out), gpu) for part in parts]
    errors, plain_errors, kinds = {}, {}, {}
    rates_of: dict[str, dict[str, Any]] = {}
    for part, rates in zip(parts, fitted, strict=True):
        label, judged = f"{part.framework}_{part.dtype}", part.where(part.held_out)
        errors[label] = mape(seconds_of(judged, rates, gpu), judged.seconds)
        without = replace(rates, correction=None)
        plain_errors[label] = mape(seconds_of(judged, without, gpu), judged.seconds)
        kinds[label] = f"{gpu.name} {part.framework} {part.dtype} MAPE", len(judged)
        rates_of.setdefault(part.framework, {})[part.dtype] = _rates_table(rates)
    return Calibration(
        name=gpu.name,
        content={"name": gpu.name, "architecture": gpu.architecture, "tensor": rates_of},
        style=".6g",
        tables=tables,
        rows=sum(int(np.count_nonzero(~part.held_out)) for part in parts),
        split=split,
        errors=list(errors.values()),
        provenance={
            "versions": {part.framework: part.version for part in reversed(parts)},
            "held_out_mape_of": rounded(errors, ".4f"),
        },
        checks=[
            Check(
                title,
                100.0 * errors[label],
                "%",
                rows=rows,
                note=f"formula alone {100.0 * plain_errors[label]:.1f} %",
            )
            for label, (title, rows) in kinds.items()
        ],
    )


def fit_tensor(rows: Rows, gpu: Gpu) -> TensorRates:
    """Return rates fitted to all of `rows`, the correction chosen by parts of them set aside."""
    folds = _set_aside(rows)
    predicted = [
        [seconds_of(rows.where(aside), rates, gpu) for rates in _choices(rows.where(~aside), gpu)]
        for aside in folds
    ]
    seconds = [np.concatenate(parts) for parts in zip(*predicted, strict=True)]
    measured = np.concatenate([rows.seconds[aside] for aside in folds])
    best = int(np.argmin([mape(one, measured) for one in seconds]))
    final = _fit_formula(rows, gpu)
    if best > 0:
        final = _corrected(rows, gpu, final, ALPHAS[best - 1])
    seen = tuple((float(size.min()), float(size.max())) for size in tensor_kernels.sizes_of(rows))
    turns = inner_lengths_left_out(rows, final) if rows.dtype in WEIGHT_ONLY else []
    pairs = map(np.concatenate, zip(*turns, strict=True)) if turns else (seconds[best], measured)
    return replace(final, seen=seen, band=band_of(*pairs), calibrated=True)


def inner_lengths_left_out(rows: Rows, rates: TensorRates) -> list[tuple[Floats, Floats]]:
    """Return predicted and measured seconds of each part of the inner lengths, by the others.

    Empty with too few rows or inner lengths. Corrections keep the part of the slope of `rates`.
    """
    rows, gpu = rows.drawn(TURN_ROWS), load_gpu(rows.gpu)
    turn = np.floor(TURNS * fraction(group_of([rows.sizes["k"]])))
    if len(rows) < LEAST_ROWS or np.unique(turn).size < TURNS:
        return []
    found, alpha = [], 1.0 if rates.correction is None else rates.correction.alpha
    for one in range(TURNS):
        aside, others = rows.where(turn == one), rows.where(turn != one)
        fitted = _corrected(others, gpu, _fit_formula(others, gpu), alpha)
        found.append((seconds_of(aside, fitted, gpu), aside.seconds))
    return found


def _set_aside(rows: Rows) -> list[Bools]:
    """Return the rows set aside in turn: one part of many matrices, each of a few."""
    matrices = np.unique(rows.bucket)
    if matrices.size < LEAST_MATRICES:
        return [rows.bucket == matrix for matrix in matrices]
    held_out = LOWER_QUARTER[1]
    return [(rows.bucket - held_out) / (1.0 - held_out) < ASIDE]


def _choices(rows: Rows, gpu: Gpu) -> list[TensorRates]:
    """Return the formula alone, and with each of the corrections."""
    plain = _fit_formula(rows, gpu)
    return [plain, *(_corrected(rows, gpu, plain, alpha) for alpha in ALPHAS)]


def seconds_of(rows: Rows, rates: TensorRates, gpu: Gpu) -> Floats:
    """Return predicted seconds of measured rows."""
    return product_seconds(rates, tensor_kernels.sizes_of(rows), gpu, *MEASURED[rows.dtype])


def _fit_formula(rows: Rows, gpu: Gpu) -> TensorRates:
    """Fit the numbers and the table of tiles to some of the rows."""
    some, numbers = rows.drawn(FORMULA_ROWS), form("tensor")
    splits = list(dict.fromkeys(tile.splits for tile in TENSOR_TILES))

    def rates(found: Mapping[object, float]) -> TensorRates:
        plain: dict[str, Any] = {name: found[name] for name in NUMBERS}
        best = max(found[shape] for shape in SHAPES)
        plain["compute"] *= best
        return TensorRates(
            kind=rows.dtype,
            measured_on=gpu.name,
            tiles=tuple(Tile(m, n, found[m, n] / best, s) for s in splits for m, n in SHAPES),
            **plain,
        )

    names: tuple[object, ...] = (*numbers.start, *SHAPES)
    tiles = [tile.efficiency for tile in TENSOR_TILES[: len(SHAPES)]]
    low, high = np.log(EFFICIENCIES)
    found = fit_named(
        lambda found: seconds_of(some, rates(found), gpu),
        names,
        np.log([*numbers.start.values(), *tiles]),
        some.seconds,
        low=np.concatenate([numbers.low, np.full(len(SHAPES), low)]),
        high=np.concatenate([numbers.high, np.full(len(SHAPES), high)]),
        ridge=1.0,
    )
    return rates(found)


def _corrected(rows: Rows, gpu: Gpu, plain: TensorRates, alpha: float) -> TensorRates:
    """Return the rates with monotone trees on what the formula misses."""
    model_s = seconds_of(rows, plain, gpu)
    features = features_of(tensor_kernels.sizes_of(rows), model_s)[:-1]
    correction = fit_correction(
        features, model_s, rows.seconds, alpha=alpha, trees=TREES, depth=DEPTH
    )
    return replace(plain, correction=correction)


def _rates_table(rates: TensorRates) -> dict[str, Any]:
    assert rates.band is not None
    shapes = {(tile.m, tile.n): tile.efficiency for tile in rates.tiles}
    table: dict[str, Any] = {name: getattr(rates, name) for name in NUMBERS}
    table |= {
        "splits": sorted({tile.splits for tile in rates.tiles}),
        "tiles": [[m, n, round(efficiency, 4)] for (m, n), efficiency in shapes.items()],
        "seen": rates.seen,
        "band": rounded(vars(rates.band), ".4f"),
    }
    if rates.correction is not None:
        table["correction"] = tree_table(rates.correction, digits=6)
    return table
