"""Fit tensor-core products to loops timed on the GPU: `python -m lab.fits tensor_cores`.

For each board, framework and kind: a few numbers and a table of tiles by robust least squares on
logarithms, then trees on what is left. A fifth of the fitted weight matrices, set aside, chooses
how far the trees may bend and gives the band; the held-out quarter judges, and nothing else. Of
narrow weights few inner lengths were timed, which the matrices of a layer share: what is foretold
of inner lengths left out gives their band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, chosen, gpu_of, hashes, sha256_of
from lab.fits.methods.bands import band_of
from lab.fits.methods.monotone_trees import fit_bend, slope_lines, split_lines
from lab.tables.kernels.engine_layers import HEADS, LAYER_SPLIT, LAYERS, read_layer_products
from lab.tables.kernels.tensor_cores import (
    LATENT_TABLE,
    PRODUCERS,
    SPLIT,
    TABLE,
    own_products,
    read_tensor_rows,
    sizes_of,
)
from lab.tables.rows import LOWER_QUARTER, Bools, Floats, Rows, fraction, group_of, mape, read_table
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.kernels.families.tensor_cores import MEASURED, NUMBERS, WEIGHT_ONLY
from simulators.kernels.monotone_correction import features_of
from simulators.kernels.profile import TENSOR_TILES, TensorRates, product_seconds
from simulators.kernels.tiling import Tile

FOLDER = CALIBRATIONS / "tensor"

OWN = Path("catalog") / "kernels" / "tensor"
"""Where a device of one's own is looked for first."""

IN_LAYERS = ("rtx_4090",)
"""Boards whose products nobody timed but in the layers of an engine."""

LEAST_MATRICES = 8
"""Of a kind: of fewer each is set aside in turn."""

LEAST_ROWS = 100
"""Of a kind of products: with fewer, too few are left to choose between formula and trees."""

FORMULA_ROWS = 3000
"""Rows the formula is fitted to; more of them say nothing new about a score of numbers."""

ASIDE = 0.2
"""Part of the fitted weight matrices that choose the correction."""

TURNS, TURN_ROWS = 5, 2500
"""Parts of the inner lengths of narrow weights, left out in turn, and rows drawn for these."""

TREES, DEPTH = 64, 3
ALPHAS = (0.4, 0.6, 0.8, 1.0)
"""How much of the formula's slope is kept; a smaller part leaves trees more room to bend down."""

START = {
    "compute": (0.75, 0.15, 1.0),
    "bandwidth": (0.85, 0.2, 1.0),
    "load_bytes_per_clock": (64.0, 8.0, 512.0),
    "tail": (0.88, 0.05, 0.99),
    "prologue": (256.0, 8.0, 4096.0),
    "start_s": (2e-6, 2e-7, 3e-5),
    "step_s": (1e-9, 1e-11, 1e-8),
    "split_s": (5e-7, 1e-8, 1e-5),
}
"""Where a fit begins, and between what it stays."""

EFFICIENCIES = (0.02, 1.3)
"""Of tiles beside the sustained part; the best is set to one afterwards."""

SHAPES = tuple(dict.fromkeys((tile.m, tile.n) for tile in TENSOR_TILES))


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the boards of the tables."""
    timed, layered = (TABLE, LATENT_TABLE), (LAYERS, HEADS)
    hashes(reference, (*timed, *layered))
    rows = read_tensor_rows(reference, PRODUCERS)
    for name in chosen(only, [*(part.gpu for part in rows), *IN_LAYERS]):
        if name not in IN_LAYERS:
            parts = [part for part in rows if part.gpu == name]
            yield _fit_board(load_gpu(name), parts, hashes(reference, timed), SPLIT)
        elif layers := read_layer_products(reference, name):
            yield _fit_board(load_gpu(name), layers, hashes(reference, layered), LAYER_SPLIT)


def fit_measured(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield the calibration of one device by the products in a file of its measurements."""
    gpu = gpu_of(device)
    found = own_products(read_table(measured, ("op", "latency_us")), gpu.name)
    parts = [part for part in found if len(part) >= LEAST_ROWS]
    if not parts:
        counts = ", ".join(f"{len(part)} of {part.dtype}" for part in found) or "none"
        raise UserError(
            f"{measured}: a kind of products needs {LEAST_ROWS} rows of 'gemm'; it has {counts}"
        )
    yield _fit_board(gpu, parts, {measured.name: sha256_of(measured)}, SPLIT)


def _fit_board(
    gpu: Gpu, parts: Sequence[Rows], tables: Mapping[str, str], split: str
) -> Calibration:
    """Return the calibration of one board."""
    fitted = [fit_tensor(part.where(~part.held_out), gpu) for part in parts]
    judged = [part.where(part.held_out) for part in parts]
    errors = [_error(part, r, gpu) for part, r in zip(judged, fitted, strict=True)]
    plain = [
        _error(part, replace(r, correction=None), gpu)
        for part, r in zip(judged, fitted, strict=True)
    ]
    newest = {part.framework: part.version for part in reversed(parts)}
    versions = [f'{framework} = "{version}"' for framework, version in newest.items()]
    lines = ["", "[provenance.held_out_mape_of]"]
    for part, error in zip(parts, errors, strict=True):
        lines.append(f"{part.framework}_{part.dtype} = {error:.4f}")
    for part, rates in zip(parts, fitted, strict=True):
        lines += ["", *_rates_lines(f"tensor.{part.framework}.{part.dtype}", rates)]
    return Calibration(
        name=gpu.name,
        tables=tables,
        rows=sum(int(np.count_nonzero(~part.held_out)) for part in parts),
        split=split,
        error=float(np.mean(errors)),
        lines=lines,
        head=[f'name = "{gpu.name}"', f'architecture = "{gpu.architecture}"', ""],
        more=[f"versions = {{ {', '.join(versions)} }}"],
        checks=[
            Check(
                f"{gpu.name} {part.framework} {part.dtype} MAPE",
                100.0 * error,
                "%",
                rows=len(part),
                note=f"formula alone {100.0 * formula:.1f} %",
            )
            for part, error, formula in zip(judged, errors, plain, strict=True)
        ],
    )


def fit_tensor(rows: Rows, gpu: Gpu) -> TensorRates:
    """Return rates fitted to all of `rows`, the correction chosen by parts of them set aside."""
    folds = _set_aside(rows)
    foretold = [
        [seconds_of(rows.where(aside), rates, gpu) for rates in _choices(rows.where(~aside), gpu)]
        for aside in folds
    ]
    seconds = [np.concatenate(parts) for parts in zip(*foretold, strict=True)]
    measured = np.concatenate([rows.seconds[aside] for aside in folds])
    best = int(np.argmin([mape(said, measured) for said in seconds]))
    final = _fit_formula(rows, gpu)
    if best > 0:
        final = _bent(rows, gpu, final, ALPHAS[best - 1])
    seen = tuple((float(size.min()), float(size.max())) for size in sizes_of(rows))
    turns = inner_lengths_left_out(rows, final) if rows.dtype in WEIGHT_ONLY else []
    band = band_of(*map(np.concatenate, zip(*turns, strict=True))) if turns else None
    band = band or band_of(seconds[best], measured)
    return replace(final, seen=seen, band=band, calibrated=True)


def inner_lengths_left_out(rows: Rows, rates: TensorRates) -> list[tuple[Floats, Floats]]:
    """Return predicted and measured seconds of each part of the inner lengths, by the others.

    Of fewer inner lengths or rows than that takes, nothing. Corrections leave the formula the slope
    that those of `rates` do.
    """
    rows, gpu = rows.drawn(TURN_ROWS), load_gpu(rows.gpu)
    turn = np.floor(TURNS * fraction(group_of([rows.sizes["k"]])))
    if len(rows) < LEAST_ROWS or np.unique(turn).size < TURNS:
        return []
    found, alpha = [], 1.0 if rates.correction is None else rates.correction.alpha
    for one in range(TURNS):
        aside, others = rows.where(turn == one), rows.where(turn != one)
        foretold = _bent(others, gpu, _fit_formula(others, gpu), alpha)
        found.append((seconds_of(aside, foretold, gpu), aside.seconds))
    return found


def _set_aside(rows: Rows) -> list[Bools]:
    """Return what is set aside in turn: one part of many matrices, each of a few."""
    matrices = np.unique(rows.bucket)
    if matrices.size < LEAST_MATRICES:
        return [rows.bucket == matrix for matrix in matrices]
    held_out = LOWER_QUARTER[1]
    return [(rows.bucket - held_out) / (1.0 - held_out) < ASIDE]


def _choices(rows: Rows, gpu: Gpu) -> list[TensorRates]:
    """Return the formula alone, and with each of the corrections."""
    plain = _fit_formula(rows, gpu)
    return [plain, *(_bent(rows, gpu, plain, alpha) for alpha in ALPHAS)]


def seconds_of(rows: Rows, rates: TensorRates, gpu: Gpu) -> Floats:
    """Return what rates say about measured rows."""
    return product_seconds(rates, sizes_of(rows), gpu, *MEASURED[rows.dtype])


def _fit_formula(rows: Rows, gpu: Gpu) -> TensorRates:
    """Fit the numbers and the table of tiles to some of the rows."""
    some = rows.drawn(FORMULA_ROWS)
    names: tuple[object, ...] = (*NUMBERS, *SHAPES)
    splits = list(dict.fromkeys(tile.splits for tile in TENSOR_TILES))

    def rates(found: Mapping[object, float]) -> TensorRates:
        numbers: dict[str, Any] = {name: found[name] for name in NUMBERS}
        best = max(found[shape] for shape in SHAPES)
        numbers["compute"] *= best
        return TensorRates(
            kind=rows.dtype,
            measured_on=gpu.name,
            tiles=tuple(Tile(m, n, found[m, n] / best, s) for s in splits for m, n in SHAPES),
            **numbers,
        )

    tiles = [tile.efficiency for tile in TENSOR_TILES[: len(SHAPES)]]
    start, low, high = (
        np.log([*(START[name][i] for name in NUMBERS), *ends])
        for i, ends in enumerate((tiles, *([e] * len(SHAPES) for e in EFFICIENCIES)))
    )
    found = fit_named(
        lambda found: product_seconds(rates(found), sizes_of(some), gpu, *MEASURED[rows.dtype]),
        names,
        start,
        some.seconds,
        low=low,
        high=high,
        ridge=1.0,
    )
    return rates(found)


def _bent(rows: Rows, gpu: Gpu, plain: TensorRates, alpha: float) -> TensorRates:
    """Return the rates with monotone trees on what the formula misses."""
    model_s = product_seconds(plain, sizes_of(rows), gpu, *MEASURED[rows.dtype])
    features = features_of(sizes_of(rows), model_s)[:-1]
    bend = fit_bend(features, model_s, rows.seconds, alpha=alpha, trees=TREES, depth=DEPTH)
    return replace(plain, correction=bend)


def _error(rows: Rows, rates: TensorRates, gpu: Gpu) -> float:
    return mape(seconds_of(rows, rates, gpu), rows.seconds)


def _rates_lines(label: str, rates: TensorRates) -> list[str]:
    assert rates.band is not None
    shapes = {(tile.m, tile.n): tile.efficiency for tile in rates.tiles}
    tiles = ", ".join(f"[{m}, {n}, {e:.4f}]" for (m, n), e in shapes.items())
    lo, hi = ([round(end, 4) for end in ends] for ends in (rates.band.lo, rates.band.hi))
    lines = [
        f"[{label}]",
        *(f"{name} = {getattr(rates, name):.6g}" for name in NUMBERS),
        f"splits = {sorted({tile.splits for tile in rates.tiles})}",
        f"tiles = [{tiles}]",
        f"seen = {[list(ends) for ends in rates.seen]}",
        f"band = {{ lo = {lo}, hi = {hi} }}",
    ]
    if (bend := rates.correction) is not None:
        values = " ".join(f"{x:.3g}" for x in bend.values.tolist())
        lines += [f"[{label}.correction]", *slope_lines(bend), *split_lines(bend, 6)]
        lines.append(f'values = "{values}"')
    return lines
