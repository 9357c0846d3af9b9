"""Tables of tensor-core products become calibrations: `python -m lab.fits.tensor_cores`.

For each board, framework and kind: a few numbers and a table of tiles by robust least squares on
logarithms, then trees on what is left. A fifth of the fitted weight matrices, set aside, chooses
how far the trees may bend and gives the band; the held-out quarter judges, and nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.methods.boosting import boosted
from lab.fits.methods.least_squares import fit_log
from lab.tables.kernels.engine_products import HEADS, LAYER_SPLIT, LAYERS, read_layer_products
from lab.tables.kernels.fp32_kernels import read_table
from lab.tables.kernels.tensor_cores import (
    HELD_OUT,
    LATENT_TABLE,
    SPLIT,
    TABLE,
    TensorRows,
    own_products,
    read_tensor_rows,
)
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE
from simulators.core.report import print_checks
from simulators.kernels.families.tensor_cores import (
    MEASURED,
    NUMBERS,
    TensorRates,
    formula_seconds,
    tensor_seconds,
)
from simulators.kernels.intervals import band_of
from simulators.kernels.monotone_correction import Correction, features_of
from simulators.kernels.profile import TENSOR_TILES
from simulators.kernels.tensor_levels import FOLDER, FRAMEWORKS
from simulators.kernels.tiling import Tile

Floats = NDArray[np.float64]

SHIPPED = PACKAGE / "kernels" / "calibration" / FOLDER

OWN = Path("catalog") / "kernels" / FOLDER
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

TREES, DEPTH = 64, 3
ALPHAS = (0.4, 0.6, 0.8, 1.0)
"""How much of the formula's slope is kept; a smaller part leaves trees more room to bend down."""

START = {
    "compute": (0.75, 0.15, 1.0), "bandwidth": (0.85, 0.2, 1.0),
    "load_bytes_per_clock": (64.0, 8.0, 512.0), "tail": (0.88, 0.05, 0.99),
    "prologue": (256.0, 8.0, 4096.0), "start_s": (2e-6, 2e-7, 3e-5),
    "step_s": (1e-9, 1e-11, 1e-8), "split_s": (5e-7, 1e-8, 1e-5),
}  # fmt: skip
"""Where a fit begins, and between what it stays."""

EFFICIENCIES = (0.02, 1.3)
"""Of tiles beside the sustained part; the best is set to one afterwards."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write and report."""
    parser = argparse.ArgumentParser(prog="python -m lab.fits.tensor_cores", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the calibrations")
    parser.add_argument("--gpu", action="append", help="only this one; may be given again")
    parser.add_argument("--device", help="a GPU of one's own, by the name of its data sheet")
    parser.add_argument("--measured", type=Path, help="its measurements, by kernels.measure")
    asked = parser.parse_args(arguments)
    if (asked.device is None) != (asked.measured is None):
        parser.error("--device and --measured belong together")
    try:
        if asked.device:
            fit_device(asked.device, asked.measured, asked.out or OWN)
        else:
            fit_reference(asked.out or SHIPPED, asked.gpu)
    except UserError as error:
        sys.exit(f"tensor_fit: {error}")


def fit_reference(out: Path, only: Sequence[str] | None = None) -> None:
    """Fit every board of the reference folder."""
    reference = reference_folder()
    rows = () if reference is None else read_tensor_rows(reference, FRAMEWORKS)
    if reference is None or not rows:
        raise UserError(f"there is no {TABLE}; set SWEEPER_REFERENCE to the folder that has it")
    lines = []
    for name in dict.fromkeys([*(part.gpu for part in rows), *IN_LAYERS]):
        if only and name not in only:
            continue
        parts = [part for part in rows if part.gpu == name]
        tables = (LAYERS, HEADS) if name in IN_LAYERS else (TABLE, LATENT_TABLE)
        if name in IN_LAYERS:
            parts = read_layer_products(reference, name)
        digests = {
            table: sha256_of(reference / table) for table in tables if (reference / table).is_file()
        }
        if parts:
            lines += _fit_board(load_gpu(name), parts, out, digests)
    print_checks(lines)


def fit_device(name: str, measured: Path, out: Path) -> None:
    """Fit one device to the products in a file of its measurements."""
    gpu = load_gpu(name)
    found = own_products(read_table(measured), gpu.name)
    parts = [part for part in found if len(part) >= LEAST_ROWS]
    if not parts:
        counts = ", ".join(f"{len(part)} of {part.kind}" for part in found) or "none"
        raise UserError(
            f"{measured}: a kind of products needs {LEAST_ROWS} rows of 'gemm'; it has {counts}"
        )
    print_checks(_fit_board(gpu, parts, out, {measured.name: sha256_of(measured)}))
    print(f"\nWritten: {out / f'{gpu.name}.toml'}")


def _fit_board(
    gpu: Gpu, parts: Sequence[TensorRows], out: Path, digests: Mapping[str, str]
) -> list[Check]:
    """Fit and write one board; return its errors on matrices held out."""
    fitted = [fit_tensor(part.where(~part.held_out), gpu) for part in parts]
    errors = [_held_out_error(part, r, gpu) for part, r in zip(parts, fitted, strict=True)]
    write_calibration(out / f"{gpu.name}.toml", _text(gpu, parts, fitted, errors, digests))
    return [
        Check(
            f"{gpu.name} {part.framework} {part.kind} MAPE",
            100.0 * bent,
            "%",
            rows=int(np.count_nonzero(part.held_out)),
            note=f"formula alone {100.0 * plain:.1f} %",
        )
        for part, (plain, bent) in zip(parts, errors, strict=True)
    ]


def fit_tensor(rows: TensorRows, gpu: Gpu) -> TensorRates:
    """Return rates fitted to all of `rows`, the correction chosen by parts of them set aside."""
    folds = _set_aside(rows)
    foretold = [
        [seconds_of(rows.where(aside), rates, gpu) for rates in _choices(rows.where(~aside), gpu)]
        for aside in folds
    ]
    seconds = [np.concatenate(parts) for parts in zip(*foretold, strict=True)]
    measured = np.concatenate([rows.seconds[aside] for aside in folds])
    best = int(np.argmin([_mape(said, measured) for said in seconds]))
    final = _fit_formula(rows, gpu)
    if best > 0:
        final = _bent(rows, gpu, final, ALPHAS[best - 1])
    seen = tuple((float(size.min()), float(size.max())) for size in rows.sizes)
    return replace(final, seen=seen, band=band_of(seconds[best], measured), calibrated=True)


def _set_aside(rows: TensorRows) -> list[NDArray[np.bool_]]:
    """Return what is set aside in turn: one part of many matrices, each of a few."""
    matrices = np.unique(rows.place)
    if matrices.size < LEAST_MATRICES:
        return [rows.place == matrix for matrix in matrices]
    return [(rows.place - HELD_OUT) / (1.0 - HELD_OUT) < ASIDE]


def _choices(rows: TensorRows, gpu: Gpu) -> list[TensorRates]:
    """Return the formula alone, and with each of the corrections."""
    plain = _fit_formula(rows, gpu)
    return [plain, *(_bent(rows, gpu, plain, alpha) for alpha in ALPHAS)]


def seconds_of(rows: TensorRows, rates: TensorRates, gpu: Gpu) -> Floats:
    """Return what rates say about measured rows."""
    return tensor_seconds(rates, rows.sizes, gpu, *MEASURED[rows.kind])


def _fit_formula(rows: TensorRows, gpu: Gpu) -> TensorRates:
    """Fit the numbers and the table of tiles to some of the rows."""
    if len(rows) > FORMULA_ROWS:
        draw = np.random.default_rng(np.random.SeedSequence(0))
        rows = rows.where(np.sort(draw.choice(len(rows), FORMULA_ROWS, replace=False)))
    shapes = list(dict.fromkeys((tile.m, tile.n) for tile in TENSOR_TILES))
    splits = list(dict.fromkeys(tile.splits for tile in TENSOR_TILES))

    def rates(p: Floats) -> TensorRates:
        numbers = dict(zip(NUMBERS, np.exp(p[: len(NUMBERS)]).tolist(), strict=True))
        efficiencies = np.exp(p[len(NUMBERS) :]).tolist()
        best = max(efficiencies)
        numbers["compute"] *= best
        return TensorRates(
            kind=rows.kind,
            measured_on=gpu.name,
            tiles=tuple(
                Tile(m, n, e / best, s)
                for s in splits
                for (m, n), e in zip(shapes, efficiencies, strict=True)
            ),
            **numbers,
        )

    def seconds(p: Floats) -> Floats:
        return formula_seconds(rates(p), rows.sizes, gpu, *MEASURED[rows.kind])

    tiles = [tile.efficiency for tile in TENSOR_TILES[: len(shapes)]]
    start, low, high = (
        np.log([*(START[name][i] for name in NUMBERS), *ends])
        for i, ends in enumerate((tiles, *([e] * len(shapes) for e in EFFICIENCIES)))
    )
    fitted = fit_log(
        seconds,
        start,
        rows.seconds,
        weights=np.ones(len(rows)),
        ridge=np.ones(start.size),
        bounds=(low, high),
    )
    return rates(fitted)


def _bent(rows: TensorRows, gpu: Gpu, plain: TensorRates, alpha: float) -> TensorRates:
    """Return the rates with monotone trees on what the formula misses."""
    model_s = formula_seconds(plain, rows.sizes, gpu, *MEASURED[rows.kind])
    log_t = np.log(model_s)
    target = np.log(rows.seconds) - alpha * log_t
    offset = float(np.median(target))
    features, thresholds, values = boosted(
        features_of(rows.sizes, model_s),
        target - offset,
        np.ones(len(rows)),
        trees=TREES,
        depth=DEPTH,
    )
    correction = Correction(
        alpha=alpha,
        offset=offset,
        log_t_lo=float(log_t.min()),
        log_t_hi=float(log_t.max()),
        depth=DEPTH,
        features=features,
        thresholds=thresholds,
        values=values,
    )
    return replace(plain, correction=correction)


def _held_out_error(part: TensorRows, rates: TensorRates, gpu: Gpu) -> tuple[float, float]:
    """Return the error of the formula and of the whole on matrices nothing saw."""
    judged = part.where(part.held_out)
    formula = replace(rates, correction=None)
    plain, bent = (seconds_of(judged, chosen, gpu) for chosen in (formula, rates))
    return _mape(plain, judged.seconds), _mape(bent, judged.seconds)


def _mape(predicted_s: Floats, measured_s: Floats) -> float:
    return float(np.mean(np.abs(predicted_s / measured_s - 1.0)))


def _text(
    gpu: Gpu,
    parts: Sequence[TensorRows],
    fitted: Sequence[TensorRates],
    errors: Sequence[tuple[float, float]],
    digests: Mapping[str, str],
) -> str:
    """Return the calibration file of one board."""
    mean = float(np.mean([bent for _, bent in errors]))
    newest = {part.framework: part.version for part in reversed(parts)}
    versions = [f'{framework} = "{version}"' for framework, version in newest.items()]
    lines = [
        f"# Written by `python -m lab.fits.tensor_cores` for {gpu.name}.",
        "# To change a number, change the fit.",
        f'name = "{gpu.name}"',
        f'architecture = "{gpu.architecture}"',
        "",
        "[provenance]",
        f"measured = {_listed(digests)}",
        f"sha256 = {_listed(digests.values())}",
        f"rows = {sum(int(np.count_nonzero(~part.held_out)) for part in parts)}",
        f'split = "{LAYER_SPLIT if gpu.name in IN_LAYERS else SPLIT}"',
        f"held_out_mape = {mean:.4f}",
        f"versions = {{ {', '.join(versions)} }}",
        "",
        "[provenance.held_out_mape_of]",
        *(
            f"{part.framework}_{part.kind} = {bent:.4f}"
            for part, (_, bent) in zip(parts, errors, strict=True)
        ),
    ]
    for part, rates in zip(parts, fitted, strict=True):
        lines += ["", *_rates_lines(f"tensor.{part.framework}.{part.kind}", rates)]
    return "\n".join(lines)


def _rates_lines(label: str, rates: TensorRates) -> list[str]:
    assert rates.band is not None
    shapes = {(tile.m, tile.n): tile.efficiency for tile in rates.tiles}
    tiles = ", ".join(f"[{m}, {n}, {e:.4f}]" for (m, n), e in shapes.items())
    lines = [
        f"[{label}]",
        *(f"{name} = {getattr(rates, name):.6g}" for name in NUMBERS),
        f"splits = {sorted({tile.splits for tile in rates.tiles})}",
        f"tiles = [{tiles}]",
        f"seen = {[list(ends) for ends in rates.seen]}",
        f"band = {{ lo = {_rounded(rates.band.lo)}, hi = {_rounded(rates.band.hi)} }}",
    ]
    if rates.correction is None:
        return lines
    bent = rates.correction
    return [
        *lines,
        f"[{label}.correction]",
        f"alpha = {bent.alpha}",
        f"offset = {bent.offset:.6g}",
        f"log_t_lo = {bent.log_t_lo:.6g}",
        f"log_t_hi = {bent.log_t_hi:.6g}",
        f"depth = {bent.depth}",
        f'features = "{" ".join(map(str, bent.features.tolist()))}"',
        f'thresholds = "{" ".join(f"{x:.6g}" for x in bent.thresholds.tolist())}"',
        f'values = "{" ".join(f"{x:.3g}" for x in bent.values.tolist())}"',
    ]


def _listed(words: Iterable[str]) -> str:
    return f"[{', '.join(f'{chr(34)}{word}{chr(34)}' for word in words)}]"


def _rounded(ends: Sequence[float]) -> list[float]:
    return [round(end, 4) for end in ends]


if __name__ == "__main__":
    main()
