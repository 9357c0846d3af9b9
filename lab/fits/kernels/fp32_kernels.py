"""Fit fp32 operators to calls timed from the host, in full: tables, rates and corrections.

Every GPU of the reference folder is fitted, and a summary of all of them for GPUs without
measurements. With `--device NAME --measured FILE` one GPU is fitted to hundreds of rows per class;
`sweeper calibrate` fits fewer. Printed errors are of shapes that the fit has not seen, beside those
of the data sheet alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, chosen, gpu_of, rounded
from lab.fits.methods.fp32_forms import cross_validated_s, fit_full, rates_of
from lab.fits.methods.held_out import band_of
from lab.fits.methods.monotone_trees import tree_table
from lab.tables.fp32 import SPLIT, TABLES, read_rows, rows_of_table
from lab.tables.rows import Rows, mape, read_table
from planning.calibrate.measurements import NEEDS, SIZES
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.checks import Check
from simulators.core.errors import UserError
from simulators.evidence.calibration_files import CALIBRATIONS, SUMMARY
from simulators.evidence.default_rates import (
    MeasuredGpu,
    identity_of,
    measured_gpus,
    nearest_gpu,
    of_architecture,
)
from simulators.evidence.intervals import Band
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import GemmRates, Profile

FULL_ROWS, FULL_STREAM_ROWS = 200, 30
"""Least rows of a class of products, and of another class."""

FOLDER, OWN = CALIBRATIONS, Path("catalog") / "kernels"
OF_OTHERS = ("calibrated", "start_s", "step_s", "split_s")
"""Fields that only tensor-core products have numbers for."""

OF_ITS_OWN = ("tail", "prologue", "prologue_rate", "k_step", "load_bytes_per_clock")
"""Numbers that do not transfer to other GPUs."""


@dataclass(frozen=True)
class FittedGpu:
    """A GPU's profile, with its errors on held-out rows."""

    gpu: Gpu
    profile: Profile
    rows: list[Rows]
    nearest: str
    errors: dict[str, tuple[float, float, int]]  # by class: before, after, rows
    bands: dict[str, Band]


def fit_measured(
    measured: Path, device: str, classes: Collection[str] = ()
) -> Iterator[Calibration]:
    """Yield the calibration of one GPU, from a file of its measurements.

    Args:
        measured: Parquet or CSV.
        device: the name of a data sheet.
        classes: of operators to fit; empty: all that the file holds.
    """
    gpu = gpu_of(device)
    parts = [
        part
        for some, _ in rows_of_table(read_table(measured, NEEDS), gpu.name)
        for part in some
        if is_full(part) and (not classes or part.kernel in classes)
    ]
    if not parts:
        raise UserError(
            f"{measured} has no class with {FULL_ROWS} rows of products or {FULL_STREAM_ROWS} of "
            f"other operators; sweeper calibrate {gpu.name} --measured FILE takes fewer"
        )
    fitted = _fitted(gpu, parts, [one for one in measured_gpus() if one.name != gpu.name])
    yield _calibration(fitted, [measured])


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables, and their summary for other GPUs."""
    rows, skipped = read_rows(reference)
    for problem in skipped:
        print(f"skipped: {problem}")
    names = sorted({part.gpu for part in rows})
    wanted, done = chosen(only, [*names, SUMMARY]), []
    for name in names if SUMMARY in wanted else wanted:
        done.append(_fitted(load_gpu(name), [part for part in rows if part.gpu == name], ()))
        if name in wanted:
            yield _calibration(done[-1], TABLES)
    if SUMMARY in wanted:
        yield Calibration(
            name=SUMMARY,
            content={"gpu": [_summary(fitted) for fitted in done]},
            style=".6g",
            tables=TABLES,
            rows=sum(map(len, rows)),
            split=SPLIT,
            errors=[after for fitted in done for _, after, _ in fitted.errors.values()],
        )


def _fitted(gpu: Gpu, parts: list[Rows], others: Sequence[MeasuredGpu]) -> FittedGpu:
    """Fit every class of one GPU."""
    before = zero_shot_profile(replace(identity_of(gpu), name=gpu.name), among=others)
    profile, errors, bands, kept = before, {}, {}, []
    # Batched products first: the dispatch they show is an upper bound for single ones.
    for part in sorted(parts, key=lambda part: part.kernel):
        mine, judged = part.where(~part.held_out), part.where(part.held_out)
        kept.append(mine)
        profile = fit_full(mine, gpu, profile)
        blind_s = cross_validated_s(mine, gpu, before, fit_full, 3)
        known = np.isfinite(blind_s) & (mine.from_layers | ~mine.from_layers.any())
        bands[part.kernel] = band_of(blind_s[known], mine.seconds[known])
        untouched = mape(call_seconds(judged.operator, gpu, before), judged.seconds)
        after = mape(call_seconds(judged.operator, gpu, profile), judged.seconds)
        errors[part.kernel] = (untouched, after, len(judged))
    same_vendor = [one for one in others if one.vendor == gpu.vendor]
    nearest = nearest_gpu(of_architecture(gpu.architecture, same_vendor)) if others else ""
    return FittedGpu(gpu, replace(profile, level="full"), kept, nearest, errors, bands)


def is_full(part: Rows) -> bool:
    """Return whether a class has enough rows for a fit in full, with a half held out."""
    return len(part) >= (FULL_ROWS if part.kernel in SIZES else FULL_STREAM_ROWS)


def _summary(fitted: FittedGpu) -> dict[str, Any]:
    """Return the numbers of a GPU that transfer to others."""
    gpu, rates = fitted.gpu, {}
    for part in fitted.rows:
        numbers = _numbers(rates_of(fitted.profile, part.kernel))
        kept = {name: value for name, value in numbers.items() if name not in OF_ITS_OWN}
        rates[part.kernel] = rounded(kept, ".5g")
    return {
        "name": gpu.name,
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "flops_per_j": gpu.peak("fp32") / gpu.tdp_w,
        "rates": rates,
    }


def _calibration(fitted: FittedGpu, tables: Sequence[str | Path]) -> Calibration:
    """Return the calibration of one GPU."""
    profile, errors = fitted.profile, {}
    content: dict[str, Any] = {"level": profile.level, "source": fitted.nearest}
    for label, (_, after, _) in sorted(fitted.errors.items()):
        errors[label] = after
    for part in fitted.rows:
        family = "gemm" if part.kernel in profile.gemm else "vector"
        family = "reduction" if part.kernel in profile.reduction else family
        rates = rates_of(profile, part.kernel)
        content.setdefault(family, {})[part.kernel] = _rates_table(rates)
    content["bands"] = {n: rounded(vars(band), ".4f") for n, band in sorted(fitted.bands.items())}
    return Calibration(
        name=fitted.gpu.name,
        content=content,
        style=".6g",
        tables=tables,
        rows=sum(map(len, fitted.rows)),
        split=SPLIT,
        errors=list(errors.values()),
        provenance={"held_out_mape_of": rounded(errors, ".4f")},
        checks=[
            Check(
                f"{fitted.gpu.name} {label} MAPE",
                100.0 * after,
                "%",
                rows=rows,
                note=f"{profile.level}; from the data sheet alone {100.0 * before:.1f} %",
            )
            for label, (before, after, rows) in sorted(fitted.errors.items())
        ],
    )


def _numbers(rates: Any) -> dict[str, float]:
    values = {f.name: getattr(rates, f.name) for f in fields(rates) if f.name not in OF_OTHERS}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _rates_table(rates: Any) -> dict[str, Any]:
    """Return a class's numbers."""
    if not isinstance(rates, GemmRates):
        return _numbers(rates)
    shapes = {(tile.m, tile.n): tile.efficiency for tile in rates.tiles}
    table: dict[str, Any] = {
        **_numbers(rates),
        "splits": sorted({tile.splits for tile in rates.tiles}),
        "tiles": [[m, n, round(efficiency, 4)] for (m, n), efficiency in shapes.items()],
        "seen": rates.seen,
    }
    if rates.correction is not None:
        table["correction"] = tree_table(rates.correction, digits=6, value_digits=4)
    return table
