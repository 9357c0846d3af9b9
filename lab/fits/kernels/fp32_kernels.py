"""Fit fp32 operators to calls timed from the host, in full, and the errors of GPUs without rows.

A full fit has tables, rates, and a correction where cross-validation over shapes says it helps.
With `--device NAME --measured FILE` one GPU is fitted to hundreds of rows per class; `sweeper
calibrate` fits fewer. docs/explanation/kernels.md describes the fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, chosen, declared, gpu_of, rounded, settings
from lab.fits.kernels import kernel_calibration as calibration
from lab.fits.methods import band_of, quantile
from lab.tables.fp32 import read_rows, rows_of_table
from lab.tables.rows import Bools, Floats, Rows, fraction, mape, read_table
from planning.calibrate import kernels as few_shot
from planning.calibrate.kernels import fit_few, fit_named, rates_of, with_rates
from planning.calibrate.measurements import NEEDS, SIZES
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UserError
from simulators.evidence import default_rates
from simulators.evidence.default_rates import MeasuredGpu, identity_of, measured_gpus
from simulators.evidence.lookup import SUMMARY
from simulators.kernels.corrections import features_of
from simulators.kernels.families.gemm import algorithm_seconds, implicit_sizes, sizes_of
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import GemmRates, Profile, ReductionRates, Sizes, product_seconds
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import Convolution

CONFIG = settings(__file__)

Fit = Callable[[Rows, Gpu, Profile], Profile]
Option = tuple[float, float] | None
"""Slope left to the formula and lean of the trees of a correction; None: no correction."""


CORRECTIONS = tuple((alpha, lean) for alpha in (0.8, 0.9, 1.0) for lean in (0.0, 1.0))
"""Corrections that are tried, besides none: a smaller `alpha` leaves too much to the trees."""


def fit_full(rows: Rows, gpu: Gpu, under: Profile) -> Profile:
    """Return `under` with the rates of this class fitted to all of `rows`, correction included."""
    if rows.kernel not in under.gemm:
        return _fit_stream(rows, gpu, under)
    plain = _fit_gemm(rows, gpu, under)
    return _corrected(rows, gpu, plain, _best_correction(rows, gpu, under))


def cross_validated_s(
    rows: Rows, gpu: Gpu, under: Profile, fit: Fit, folds: int = CONFIG.folds
) -> Floats:
    """Return cross-validated predictions: each shape is predicted by a fit without it."""
    out = np.full(len(rows), np.nan)
    for aside in _folds(rows, folds):
        profile = fit(rows.where(~aside), gpu, under)
        out[aside] = call_seconds(rows.where(aside).operator, gpu, profile)
    return out


def _folds(rows: Rows, folds: int) -> Iterator[Bools]:
    fold = np.floor(fraction(rows.group, salt=1) * folds)
    for number in range(folds):
        aside = fold == number
        if aside.any() and not aside.all():
            yield aside


def _thinned(rows: Rows) -> tuple[Rows, Floats]:
    keep = np.ones(len(rows), bool)
    random = np.flatnonzero(~rows.from_layers)
    if random.size > CONFIG.random_rows:
        drawn = np.random.default_rng(np.random.SeedSequence(0)).permutation(random)
        keep[drawn[CONFIG.random_rows :]] = False
    kept = rows.where(keep)
    layers = np.count_nonzero(kept.from_layers)
    weights = np.where(
        kept.from_layers, CONFIG.layer_weight / max(int(layers), 1), CONFIG.random_weight
    )
    return kept, weights if layers else np.ones(len(kept))


def _fit_gemm(rows: Rows, gpu: Gpu, under: Profile) -> Profile:
    kept, weights = _thinned(rows)
    rates = under.gemm[rows.kernel]
    shapes = list(dict.fromkeys((tile.m, tile.n) for tile in rates.tiles))

    def candidate(found: Mapping[Any, float]) -> GemmRates:
        best, tiles = calibration.relative_tiles(found, rates.tiles)
        numbers: dict[str, Any] = {name: found[name] for name in CONFIG.product_numbers}
        tail = found["tail_odds"] / (1.0 + found["tail_odds"])
        fitted = replace(rates, **numbers, tiles=tiles, compute=best, tail=tail)
        return replace(fitted, correction=None, calibrated=True)

    starts: dict[Any, float] = {
        **{(tile.m, tile.n): min(rates.compute * tile.efficiency, 1.0) for tile in rates.tiles},
        "tail_odds": rates.tail / (1.0 - rates.tail),
        **{name: getattr(rates, name) for name in CONFIG.product_numbers},
    }
    dispatch = few_shot.longest_dispatch(rows, under)
    low = np.concatenate([np.full(len(shapes), np.log(0.02)), [-3.0, -2.0, np.log(0.2), -16.0]])
    high = np.concatenate([np.zeros(len(shapes)), [5.0, 6.0, 0.0, dispatch]])

    def seconds_of(found: Mapping[Any, float]) -> Floats:
        numbers = candidate(found)
        return four_norm(_running_s(numbers, kept, gpu), numbers.dispatch_s)

    fitted = fit_named(
        seconds_of,
        list(starts),
        np.log(list(starts.values())),
        kept.seconds,
        low=low,
        high=high,
        ridge=1.0,
        weights=weights,
    )
    seen = tuple((float(size.min()), float(size.max())) for size in _sizes(rows))
    return with_rates(under, rows.kernel, replace(candidate(fitted), seen=seen))


def _sizes(rows: Rows) -> Sizes:
    operator = rows.operator
    return implicit_sizes(operator) if isinstance(operator, Convolution) else sizes_of(operator)


def _running_s(rates: GemmRates, rows: Rows, gpu: Gpu) -> Floats:
    """Return the seconds of products of one class without correction and dispatch."""
    operator = rows.operator
    if isinstance(operator, Convolution):
        return algorithm_seconds(operator, gpu, rates)
    return product_seconds(rates, sizes_of(operator), gpu, "fp32")


def _best_correction(rows: Rows, gpu: Gpu, under: Profile) -> Option:
    """Return the correction with the least cross-validated error; None unless it is worthwhile."""
    rows, _ = _thinned(rows)
    judged = rows.from_layers if rows.from_layers.any() else np.ones(len(rows), bool)
    blind = {option: np.full(len(rows), np.nan) for option in (None, *CORRECTIONS)}
    for aside in _folds(rows, CONFIG.folds):
        seen = rows.where(~aside)
        plain = _fit_gemm(seen, gpu, under)
        for option, out in blind.items():
            profile = _corrected(seen, gpu, plain, option)
            out[aside] = call_seconds(rows.where(aside).operator, gpu, profile)
    known = judged & np.isfinite(blind[None])
    errors = {option: mape(out[known], rows.seconds[known]) for option, out in blind.items()}
    best = min(CORRECTIONS, key=errors.__getitem__)
    return best if errors[best] < CONFIG.worthwhile * errors[None] else None


def _corrected(rows: Rows, gpu: Gpu, plain: Profile, option: Option) -> Profile:
    if option is None:
        return plain
    kept, weights = _thinned(rows)
    rates = plain.gemm[rows.kernel]
    clear = kept.seconds > CONFIG.clear_of_dispatch * rates.dispatch_s
    model_s = _running_s(rates, kept, gpu)[clear]
    correction = calibration.fit_correction(
        features_of(tuple(size[clear] for size in _sizes(kept)), model_s)[:-1],
        model_s,
        (kept.seconds[clear] ** 4 - rates.dispatch_s**4) ** 0.25,
        alpha=option[0],
        lean=option[1],
        weights=weights[clear],
        **CONFIG.trees,
    )
    return with_rates(plain, rows.kernel, replace(rates, correction=correction))


def _fit_stream(rows: Rows, gpu: Gpu, under: Profile) -> Profile:
    rates = rates_of(under, rows.kernel)
    aligned = rows.sizes["cols"] % CONFIG.aligned == 0
    kept, weights = _thinned(rows.where(aligned) if isinstance(rates, ReductionRates) else rows)
    names = [name for name in rates.__dataclass_fields__ if name != "calibrated"]
    start = np.log([getattr(rates, name) for name in names])
    high = np.array([0.0 if name == "bandwidth" else np.inf for name in names])
    fitted = fit_named(
        lambda numbers: few_shot.seconds_by(kept, gpu, under, numbers),
        names,
        np.minimum(start, high),
        kept.seconds,
        low=start - 4.0,
        high=np.minimum(start + 4.0, high),
        ridge=0.5,
        weights=weights,
    )
    return few_shot.with_numbers(under, rows.kernel, fitted)


def measured_fp32_kernels(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield the calibration of a user's own GPU, from a file of its measurements."""
    gpu = gpu_of(device)
    table = read_table(measured, NEEDS)
    parts = [part for part in rows_of_table(table, gpu.name) if _is_full(part)]
    if not parts:
        raise UserError(
            f"{measured} has no class with {CONFIG.full_rows} rows of products or "
            f"{CONFIG.full_stream_rows} of other operators; "
            f"sweeper calibrate {gpu.name} --measured FILE takes fewer"
        )
    others = [one for one in measured_gpus() if one.name != gpu.name]
    file = Path("catalog", "kernels", f"{gpu.name}.toml")
    yield _fit_gpu(gpu, parts, others, file=file, tables=[measured])[0]


def fit_fp32_kernels(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables, and their summary for other GPUs."""
    rows = read_rows(reference)
    names = sorted({part.gpu for part in rows})
    wanted = chosen(only, [*names, SUMMARY])
    summary, errors = [], []
    for name in names if SUMMARY in wanted else wanted:
        gpu, parts = load_gpu(name), [part for part in rows if part.gpu == name]
        calibration, profile = _fit_gpu(gpu, parts, ())
        summary.append(_summary(gpu, profile, sorted(part.kernel for part in parts)))
        errors.append(calibration.errors)
        if name in wanted:
            yield calibration
    if SUMMARY in wanted:
        yield declared(
            "fp32_kernels",
            name=SUMMARY,
            content={"gpu": summary},
            rows=sum(map(len, rows)),
            errors=np.concatenate(errors),
        )


def _is_full(part: Rows) -> bool:
    return bool(
        len(part) >= (CONFIG.full_rows if part.kernel in SIZES else CONFIG.full_stream_rows)
    )


def _fit_gpu(
    gpu: Gpu, parts: Sequence[Rows], others: Sequence[MeasuredGpu], **fields: Any
) -> tuple[Calibration, Profile]:
    before = profile = zero_shot_profile(replace(identity_of(gpu), name=gpu.name), among=others)
    bands: dict[str, Any] = {}
    errors: dict[str, float] = {}
    count = 0
    # Batched products first: the dispatch they show is an upper bound for single ones.
    for part in sorted(parts, key=lambda part: part.kernel):
        seen, unseen = part.where(~part.held_out), part.where(part.held_out)
        profile = fit_full(seen, gpu, profile)
        blind_s = cross_validated_s(seen, gpu, before, fit_full, 3)
        known = np.isfinite(blind_s) & (seen.from_layers | ~seen.from_layers.any())
        bands[part.kernel] = rounded(vars(band_of(blind_s[known], seen.seconds[known])), ".4f")
        predicted_s = call_seconds(unseen.operator, gpu, profile)
        errors[part.kernel] = mape(predicted_s, unseen.seconds)
        count += len(seen)
    nearest = ""
    if same_vendor := [one for one in others if one.vendor == gpu.vendor]:
        alike = default_rates.of_architecture(gpu.architecture, same_vendor)
        nearest = default_rates.nearest_gpu(alike)
    content: dict[str, Any] = {"level": "full", "source": nearest}
    for name in errors:
        family = next((f for f in ("gemm", "reduction") if name in getattr(profile, f)), "vector")
        content.setdefault(family, {})[name] = _rates_table(rates_of(profile, name))
    calibration = declared(
        "fp32_kernels",
        name=gpu.name,
        **fields,
        content={**content, "bands": bands},
        rows=count,
        errors=list(errors.values()),
        provenance={"held_out_mape_of": rounded(errors, ".4f")},
    )
    return calibration, profile


def _summary(gpu: Gpu, profile: Profile, kernels: Sequence[str]) -> dict[str, Any]:
    rates = {}
    for kernel in kernels:
        numbers = _numbers(rates_of(profile, kernel)).items()
        kept = {name: value for name, value in numbers if name not in CONFIG.not_transferred}
        rates[kernel] = rounded(kept, ".5g")
    sheet = {name: getattr(gpu, name) for name in ("name", "vendor", "architecture")}
    return {**sheet, "flops_per_j": gpu.peak("fp32") / gpu.tdp_w, "rates": rates}


def _numbers(rates: Any) -> dict[str, float]:
    values = {name: value for name, value in vars(rates).items() if isinstance(value, float)}
    return {name: value for name, value in values.items() if name not in CONFIG.tensor_cores_only}


def _rates_table(rates: Any) -> dict[str, Any]:
    if not isinstance(rates, GemmRates):
        return _numbers(rates)
    table = _numbers(rates) | calibration.tile_table(rates.tiles) | {"seen": rates.seen}
    if rates.correction is not None:
        table["correction"] = calibration.tree_table(rates.correction, digits=6, value_digits=4)
    return table


MIDDLES = (np.arange(20) + 0.5) / 20


def fit_fp32_errors(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the errors of every calibrated GPU, by operator class."""
    names = {one.name for one in measured_gpus()}
    parts = [part.layers for part in read_rows(reference) if part.gpu in names]
    exercises, units, sheet_errors = {}, {}, {}
    for part in parts:
        gpu, key = load_gpu(part.gpu), (part.gpu, part.kernel)
        blank = zero_shot_profile(identity_of(gpu))
        sheet_errors[key] = np.log(part.seconds / call_seconds(part.operator, gpu, blank))
        exercises[key] = [
            few_shot_exercise(part, gpu, blank, CONFIG.few_rows, s) for s in range(CONFIG.seeds)
        ]
        scales = [np.mean(missed**2) for *_, missed in exercises[key] if missed.any()]
        units[key] = float(np.exp(np.mean(np.log(np.sqrt(scales)))))
    content: dict[str, dict[str, Any]] = {}
    for (gpu_name, label), some in exercises.items():
        others = [unit for (g, kind), unit in units.items() if kind == label and g != gpu_name]
        with_rows = [
            np.log(measured_s / predicted_s) / few_shot.unit_of(missed, others)
            for predicted_s, measured_s, missed in some
        ]
        content.setdefault(gpu_name, {})[label] = {
            "unit": units[gpu_name, label],
            "sheet": rounded(quantile(sheet_errors[gpu_name, label], MIDDLES.tolist()), ".3g"),
            "rows": rounded(quantile(np.concatenate(with_rows), MIDDLES.tolist()), ".3g"),
        }
    errors = np.concatenate(list(sheet_errors.values()))
    yield declared(
        "fp32_errors", content={"gpu": content}, rows=errors.size, errors=np.expm1(np.abs(errors))
    )


def few_shot_exercise(
    rows: Rows, gpu: Gpu, blank: Profile, count: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """Return predicted and measured seconds of rows of other shapes than the `count` drawn.

    Third is log(measured / predicted) of the drawn rows, each left out in turn.
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, count]))
    drawn = draw.choice(len(rows), size=min(count, len(rows) // 2), replace=False)
    exact = np.stack([rows.sizes[name] for name in rows.sizes if name != "batch"], axis=1)
    taken = {tuple(row) for row in exact[drawn]}
    rest = rows.where(np.array([tuple(row) not in taken for row in exact], bool))
    few = rows.where(drawn)
    predicted_s = call_seconds(rest.operator, gpu, fit_few(few, gpu, blank))
    blind_s = cross_validated_s(few, gpu, blank, fit_few, min(len(few), CONFIG.few_rows))
    missed = np.log(few.seconds / blind_s)
    return predicted_s, rest.seconds, missed[np.isfinite(missed)]
