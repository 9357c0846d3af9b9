"""Fit tensor-core products to loops timed on the GPU, and sustained shares of peak FLOP/s.

docs/explanation/kernels.md describes the fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, chosen, declared, gpu_of, rounded, settings
from lab.fits.kernels import kernel_calibration as calibration
from lab.fits.methods import band_of, leave_one_out
from lab.tables import fp32
from lab.tables import kernels as tables
from lab.tables import rows as measured_rows
from lab.tables.rows import Bools, Floats, Rows, fraction, group_of, mape, read_table
from planning.calibrate.kernels import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UserError
from simulators.evidence.default_rates import flops_per_j, share_of
from simulators.evidence.intervals import Band
from simulators.kernels.corrections import features_of
from simulators.kernels.families.gemm import sizes_of
from simulators.kernels.levels import MEASURED, NUMBERS, WEIGHT_ONLY, limited_to_share
from simulators.kernels.price import roofline_s
from simulators.kernels.profile import TensorRates, default_profile, product_seconds
from simulators.workload.precision import QUANTISED

CONFIG = settings(__file__)

TENSOR_TILES = default_profile("nvidia").gemm["tensor"].tiles
SHAPES = tuple(dict.fromkeys((tile.m, tile.n) for tile in TENSOR_TILES))


def fit_tensor_cores(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    rows = tables.read_tensor_rows(reference, tables.PRODUCERS)
    for name in chosen(only, [*(part.gpu for part in rows), *CONFIG.in_layers]):
        if name not in CONFIG.in_layers:
            yield _fit_gpu("tensor_cores", load_gpu(name), [p for p in rows if p.gpu == name])
        elif layers := tables.read_layer_products(reference, name):
            yield _fit_gpu("tensor_layers", load_gpu(name), layers)


def measured_tensor_cores(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield the calibration of a user's own GPU from a file of its measurements."""
    gpu = gpu_of(device)
    found = tables.own_products(read_table(measured, ("op", "latency_us")), gpu.name)
    parts = [part for part in found if len(part) >= CONFIG.least_rows]
    if not parts:
        counts = ", ".join(f"{len(part)} of {part.dtype}" for part in found) or "none"
        raise UserError(
            f"{measured}: a kind of products needs {CONFIG.least_rows} rows of 'gemm'; it has "
            f"{counts}"
        )
    file = Path("catalog", "kernels", "tensor", f"{gpu.name}.toml")
    yield _fit_gpu("tensor_cores", gpu, parts, file=file, tables=(measured,))


def _fit_gpu(fit: str, gpu: Gpu, parts: Sequence[Rows], **fields: Any) -> Calibration:
    fitted = [fit_tensor(part.where(~part.held_out), gpu) for part in parts]
    errors = {}
    rates_of: dict[str, dict[str, Any]] = {}
    for part, rates in zip(parts, fitted, strict=True):
        label, judged = f"{part.framework}_{part.dtype}", part.where(part.held_out)
        errors[label] = mape(seconds_of(judged, rates, gpu), judged.seconds)
        rates_of.setdefault(part.framework, {})[part.dtype] = _rates_table(rates)
    return declared(
        fit,
        name=gpu.name,
        **fields,
        content={"name": gpu.name, "architecture": gpu.architecture, "tensor": rates_of},
        rows=sum(int(np.count_nonzero(~part.held_out)) for part in parts),
        errors=list(errors.values()),
        provenance={
            "versions": {part.framework: part.version for part in reversed(parts)},
            "held_out_mape_of": rounded(errors, ".4f"),
        },
    )


def fit_tensor(rows: Rows, gpu: Gpu) -> TensorRates:
    """Return rates fitted to all rows; rows set aside select the correction."""
    folds = _set_aside(rows)
    predicted = []
    for aside in folds:
        seen = rows.where(~aside)
        plain = _fit_formula(seen, gpu)
        tried = [plain, *(_corrected(seen, gpu, plain, alpha) for alpha in CONFIG.alphas)]
        predicted.append([seconds_of(rows.where(aside), rates, gpu) for rates in tried])
    seconds = [np.concatenate(parts) for parts in zip(*predicted, strict=True)]
    measured = np.concatenate([rows.seconds[aside] for aside in folds])
    best = int(np.argmin([mape(one, measured) for one in seconds]))
    final = _fit_formula(rows, gpu)
    if best > 0:
        final = _corrected(rows, gpu, final, CONFIG.alphas[best - 1])
    ranges = tuple((float(size.min()), float(size.max())) for size in tables.sizes_of(rows))
    turns = inner_lengths_left_out(rows, final) if rows.dtype in WEIGHT_ONLY else []
    pairs = map(np.concatenate, zip(*turns, strict=True)) if turns else (seconds[best], measured)
    return replace(final, seen=ranges, band=band_of(*pairs), calibrated=True)


def inner_lengths_left_out(rows: Rows, rates: TensorRates) -> list[tuple[Floats, Floats]]:
    """Return predicted and measured seconds of inner lengths, by fits to the other lengths.

    Empty with too few rows or inner lengths. Corrections have the slope of `rates`.
    """
    rows, gpu = rows.drawn(CONFIG.turn_rows), load_gpu(rows.gpu)
    turn = np.floor(CONFIG.turns * fraction(group_of([rows.sizes["k"]])))
    if len(rows) < CONFIG.least_rows or np.unique(turn).size < CONFIG.turns:
        return []
    found, alpha = [], 1.0 if rates.correction is None else rates.correction.alpha
    for one in range(CONFIG.turns):
        aside, others = rows.where(turn == one), rows.where(turn != one)
        fitted = _corrected(others, gpu, _fit_formula(others, gpu), alpha)
        found.append((seconds_of(aside, fitted, gpu), aside.seconds))
    return found


def _set_aside(rows: Rows) -> list[Bools]:
    """Return the rows set aside in turn: a fifth of many matrices, or each of a few."""
    matrices = np.unique(rows.bucket)
    if matrices.size < CONFIG.least_matrices:
        return [rows.bucket == matrix for matrix in matrices]
    held_out = measured_rows.LOWER_QUARTER[1]
    return [(rows.bucket - held_out) / (1.0 - held_out) < CONFIG.aside]


def seconds_of(rows: Rows, rates: TensorRates, gpu: Gpu) -> Floats:
    """Return predicted seconds of measured rows."""
    return product_seconds(rates, tables.sizes_of(rows), gpu, *MEASURED[rows.dtype])


def _fit_formula(rows: Rows, gpu: Gpu) -> TensorRates:
    is_quantised = rows.dtype in CONFIG.quantised
    numbers = calibration.form("tensor_quantised" if is_quantised else "tensor")
    some = rows.drawn(CONFIG.formula_rows)

    def rates(found: Mapping[object, float]) -> TensorRates:
        plain: dict[str, Any] = {name: found[name] for name in numbers.start}
        best, tiles = calibration.relative_tiles(found, TENSOR_TILES)
        plain["compute"] *= best
        return TensorRates(kind=rows.dtype, measured_on=gpu.name, tiles=tiles, **plain)

    names: tuple[object, ...] = (*numbers.start, *SHAPES)
    tiles = [tile.efficiency for tile in TENSOR_TILES[: len(SHAPES)]]
    low, high = np.log(CONFIG.efficiencies)
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
    model_s = seconds_of(rows, plain, gpu)
    features = features_of(tables.sizes_of(rows), model_s)[:-1]
    trees = calibration.fit_correction(features, model_s, rows.seconds, alpha=alpha, **CONFIG.trees)
    return replace(plain, correction=trees)


def _rates_table(rates: TensorRates) -> dict[str, Any]:
    assert rates.band is not None
    table: dict[str, Any] = {name: getattr(rates, name) for name in NUMBERS}
    if rates.quantising:
        table["quantising"] = rates.quantising
    table |= calibration.tile_table(rates.tiles)
    table |= {"seen": rates.seen, "band": rounded(vars(rates.band), ".4f")}
    if rates.correction is not None:
        table["correction"] = calibration.tree_table(rates.correction, digits=6)
    return table


@dataclass(frozen=True)
class Point:
    """Share of peak FLOP/s sustained by GPUs of an architecture in a dtype."""

    vendor: str
    architecture: str
    dtype: str
    asked: float  # log of TFLOPs per joule
    share: float  # log of the sustained share


@dataclass(frozen=True)
class SustainedLine:
    """Sustained share as a line in log-log space, and the log of each vendor's factor."""

    level: float
    slope: float
    most: float
    vendors: dict[str, float]

    def share(self, vendor: str, asked: float) -> float:
        """Return the share of the peak that is sustained."""
        factor = math.exp(self.vendors.get(vendor, 0.0))
        return share_of(asked, self.level, self.slope, self.most, factor)


def fit_sustained_peaks(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the line, the vendors' factors and the intervals."""
    every = tables.read_tensor_rows(reference, tables.PRODUCERS)
    tensor = [rows for rows in every if rows.dtype in CONFIG.kinds]
    scalar = [r for r in fp32.read_rows(reference) if r.kernel == "linear"]
    scalar = [r for r in scalar if load_gpu(r.gpu).vendor == "amd"]
    points = points_of([*tensor, *scalar])
    line = line_of(points)
    left_out = list(leave_one_out(points, lambda point: point.architecture, line_of))
    others = {out[0].architecture: fitted for out, fitted in left_out}
    plain = [rows for rows in tensor if rows.operator.dtype not in QUANTISED]
    quantised = [rows for rows in tensor if rows.operator.dtype in QUANTISED]
    bands = {"plain": _band(plain, others), "quantised": _band(quantised, others)}
    yield declared(
        "sustained_peaks",
        content={
            "line": rounded({n: getattr(line, n) for n in ("level", "slope", "most")}, ".4g"),
            "vendor": rounded({n: math.exp(value) for n, value in line.vendors.items()}, ".4g"),
            "band": {name: rounded(vars(band), ".4f") for name, band in bands.items()},
        },
        rows=len(points),
        errors=[
            fitted.share(point.vendor, point.asked) / math.exp(point.share) - 1.0
            for out, fitted in left_out
            for point in out
        ],
    )


def _band(parts: Sequence[Rows], others: Mapping[str, SustainedLine]) -> Band:
    pairs, seen = [], set[str]()
    for rows in parts:
        architecture = load_gpu(rows.gpu).architecture
        if architecture in others:
            seen.add(architecture)
            some = rows.thinned(CONFIG.band_rows)
            pairs.append((sheet_seconds(some, others[architecture]), some.seconds))
    predicted_s, measured_s = map(np.concatenate, zip(*pairs, strict=True))
    return band_of(predicted_s, measured_s, widen=1.0 + 1.0 / len(seen))


def points_of(parts: Sequence[Rows]) -> list[Point]:
    """Return a point for each architecture and format with enough large products."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for part in parts:
        gpu, dtype = load_gpu(part.gpu), part.operator.dtype
        m, n, k, batch = np.broadcast_arrays(*sizes_of(part.operator), part.seconds)[:4]
        large = np.minimum(np.minimum(m, n), k) >= CONFIG.large
        if np.count_nonzero(large) >= CONFIG.fewest:
            reached = (2.0 * m * n * k * batch / part.seconds)[large] / gpu.peak(dtype)
            asked = math.log(flops_per_j(gpu, dtype))
            place = gpu.vendor, gpu.architecture, dtype
            found.setdefault(place, []).append((asked, float(np.log(np.median(reached)))))
    return [Point(*place, *np.median(some, axis=0).tolist()) for place, some in found.items()]


def line_of(points: Sequence[Point]) -> SustainedLine:
    """Return the line through the vendor with most points, and the other vendors' factors.

    Architectures have equal weights, however many formats they have.
    """
    names = [p.vendor for p in points]
    first = max(dict.fromkeys(names), key=names.count)
    some = [p for p in points if p.vendor == first]
    architectures = [p.architecture for p in some]
    weights = np.array([architectures.count(name) for name in architectures]) ** -0.5
    asked, share = np.array([(p.asked, p.share) for p in some]).T
    slope, level = np.polyfit(asked, share, 1, w=weights).tolist()
    line = SustainedLine(level, min(slope, 0.0), 1.0, {})
    for name in dict.fromkeys(names):
        off = [p.share - math.log(line.share("", p.asked)) for p in points if p.vendor == name]
        line.vendors[name] = 0.0 if name == first else float(np.mean(off))
    return replace(line, most=math.exp(share.max()))


def sheet_seconds(rows: Rows, line: SustainedLine) -> Floats:
    """Return the seconds of products by the data sheet and a line of sustained shares."""
    gpu, operator = load_gpu(rows.gpu), rows.operator
    profile = default_profile(gpu.vendor)
    share = line.share(gpu.vendor, math.log(flops_per_j(gpu, operator.dtype)))
    rates = limited_to_share(profile.gemm["tensor"], share, gpu, operator.dtype)
    formats = operator.dtype, operator.weight_dtype
    seconds = profile.kernel_s + product_seconds(rates, sizes_of(operator), gpu, *formats)
    return np.maximum(seconds, roofline_s(operator, gpu))
