"""Fit fp32 operators to calls timed from the host: `python -m lab.fits fp32_kernels`.

Every board of the reference folder is fitted again, as shipped, and all are summed up for boards
nobody measured. With `--device NAME --measured FILE` one device is: with hundreds of rows of an
operator class in full, with as few as ten by three numbers. The table that is printed shows the
error before, from the data sheet alone, and after, on shapes the fit did not see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, band_lines, chosen, gpu_of, hashes, inline, sha256_of
from lab.fits.intervals.fp32_errors import FEW_ROWS
from lab.fits.methods.bands import band_of
from lab.fits.methods.fp32_forms import cross_validated_s, fit_few, fit_full, rates_of
from lab.fits.methods.monotone_trees import slope_lines
from lab.tables.kernels.fp32_kernels import SPLIT, TABLES, read_rows, rows_of_table
from lab.tables.rows import Rows, mape, read_table
from planning.calibrate.kernels import band_by_rows
from planning.calibrate.timings import NEEDS, SIZES
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.evidence.boards import (
    Board,
    Identity,
    boards,
    donor_of,
    identity_of,
    of_architecture,
)
from simulators.evidence.calibration_files import CALIBRATIONS, SUMMARY
from simulators.evidence.intervals import Band
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import GemmRates, Profile

FULL_ROWS, FULL_STREAM_ROWS = 200, 30
"""Rows from which a class of products has tables of its own; a class without tables needs fewer."""

LEAST_ROWS = 2
"""One to fit to and one to judge."""

FOLDER = CALIBRATIONS
OWN = Path("catalog") / "kernels"

OF_OTHERS = ("calibrated", "start_s", "step_s", "split_s")
"""Fields that only tensor-core products have numbers for."""

OF_ITS_OWN = ("tail", "prologue", "prologue_rate", "k_step", "load_bytes_per_clock")
"""Numbers of a board that say nothing about others."""


@dataclass(frozen=True)
class Fitted:
    """A device's profile, with what held-out rows say about it."""

    gpu: Gpu
    profile: Profile
    rows: list[Rows]
    donor: str
    errors: dict[str, tuple[float, float, int]]  # by class: before, after, rows judged
    bands: dict[str, Band]


def fit_measured(
    measured: Path, device: str, classes: Collection[str] = ()
) -> Iterator[Calibration]:
    """Yield the calibration of one device, from a file of its measurements.

    Args:
        measured: Parquet or CSV.
        device: the name of a data sheet.
        classes: of operators, those that are fitted; empty: all that the file holds.
    """
    gpu = gpu_of(device)
    table = read_table(measured, NEEDS)
    found = [rows for some, _ in rows_of_table(table, gpu.name) for rows in some]
    found = [part for part in found if not classes or part.kernel in classes]
    parts = [part for part in found if len(part) >= LEAST_ROWS]
    if not found:
        raise UserError(f"{measured} has no operator that is known; column 'op' names them")
    for part in found:
        if len(part) < LEAST_ROWS:
            print(f"left out: {part.kernel} has {len(part)} row, and needs {LEAST_ROWS}")
    if not parts:
        raise UserError(f"{measured} has too few rows of any operator")
    fitted = _fitted(gpu, parts, [board for board in boards() if board.name != gpu.name])
    yield _calibration(fitted, {measured.name: sha256_of(measured)})


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the boards of the tables, and what sums them up for others."""
    tables = hashes(reference, TABLES)
    rows, skipped = read_rows(reference)
    for problem in skipped:
        print(f"skipped: {problem}")
    names = sorted({part.gpu for part in rows})
    wanted, done = chosen(only, [*names, SUMMARY]), []
    for name in names if SUMMARY in wanted else wanted:
        done.append(_fitted(load_gpu(name), [part for part in rows if part.gpu == name], ()))
        if name in wanted:
            yield _calibration(done[-1], tables)
    if SUMMARY in wanted:
        yield _summary(done, tables, sum(map(len, rows)))


def _fitted(gpu: Gpu, parts: list[Rows], peers: Sequence[Board]) -> Fitted:
    """Fit every class of one device at the highest level its rows allow."""
    before = zero_shot_profile(by_its_name(gpu), among=peers)
    kept = [part.where(~part.held_out) if is_full(part) else part for part in parts]
    profile, errors, bands = before, {}, {}
    # Batched products first: the dispatch they show is an upper bound for single ones.
    for part, mine in sorted(zip(parts, kept, strict=True), key=lambda pair: pair[0].kernel):
        full = is_full(part)
        fit, folds = (fit_full, 3) if full else (fit_few, min(len(mine), FEW_ROWS))
        profile = fit(mine, gpu, profile)
        judged, blind_s = mine.layers, cross_validated_s(mine, gpu, before, fit, folds)
        blind_s = blind_s[mine.from_layers] if mine.from_layers.any() else blind_s
        known = np.isfinite(blind_s)
        if full:
            bands[part.kernel] = band_of(blind_s[known], judged.seconds[known])
            judged = part.where(part.held_out)
            blind_s = call_seconds(judged.operator, gpu, profile)
            known = np.isfinite(blind_s)
        else:
            missed = np.log(judged.seconds[known] / blind_s[known])
            bands[part.kernel] = band_by_rows(part.kernel, missed, [peer.name for peer in peers])
        untouched = mape(call_seconds(judged.operator, gpu, before), judged.seconds)
        after = mape(blind_s[known], judged.seconds[known])
        errors[part.kernel] = (untouched, after, len(judged))
    profile = replace(profile, level="full" if any(map(is_full, parts)) else "few_shot")
    lenders = [board for board in peers if board.vendor == gpu.vendor]
    donor = donor_of(of_architecture(gpu.architecture, lenders)) if peers else ""
    return Fitted(gpu, profile, kept, donor, errors, bands)


def by_its_name(gpu: Gpu) -> Identity:
    """Return a GPU as another board than the one it is like, which may then lend to it."""
    return replace(identity_of(gpu), name=gpu.name)


def is_full(part: Rows) -> bool:
    """Say whether a class has enough rows for tables of its own, and so a half to hold out."""
    return len(part) >= (FULL_ROWS if part.kernel in SIZES else FULL_STREAM_ROWS)


def _board(fitted: Fitted) -> Board:
    """Return a board in the few numbers others may borrow."""
    gpu, rates = fitted.gpu, {}
    for part in fitted.rows:
        numbers = _numbers(rates_of(fitted.profile, part.kernel))
        rates[part.kernel] = {n: value for n, value in numbers.items() if n not in OF_ITS_OWN}
    flops_per_j = gpu.peak("fp32") / gpu.tdp_w
    return Board(gpu.name, gpu.vendor, gpu.architecture, flops_per_j, rates)


def _calibration(fitted: Fitted, tables: Mapping[str, str]) -> Calibration:
    """Return the calibration of one device."""
    errors = {label: after for label, (_, after, _) in fitted.errors.items()}
    lines = [
        "",
        "[provenance.held_out_mape_of]",
        *(f"{label} = {error:.4f}" for label, error in sorted(errors.items())),
    ]
    for part in fitted.rows:
        rates = rates_of(fitted.profile, part.kernel)
        few = fitted.profile.level == "few_shot" or not _is_full_fit(rates)
        title = f"{_family(part.kernel, fitted.profile)}.{part.kernel}"
        lines += ["", f"[{title}]", *_rates_lines(rates, few=few)]
        if isinstance(rates, GemmRates) and rates.correction is not None:
            lines += ["", f"[{title}.correction]", *_correction_lines(rates)]
    for label, band in sorted(fitted.bands.items()):
        lines += ["", f"[bands.{label}]", *band_lines(band)]
    return Calibration(
        name=fitted.gpu.name,
        tables=tables,
        rows=sum(map(len, fitted.rows)),
        split=SPLIT,
        error=float(np.mean(list(errors.values()))),
        lines=lines,
        head=[f'level = "{fitted.profile.level}"', f'donor = "{fitted.donor}"', ""],
        checks=[
            Check(
                f"{fitted.gpu.name} {label} MAPE",
                100.0 * after,
                "%",
                rows=rows,
                note=f"{fitted.profile.level}; from the data sheet alone {100.0 * before:.1f} %",
            )
            for label, (before, after, rows) in sorted(fitted.errors.items())
        ],
    )


def _summary(done: Sequence[Fitted], tables: Mapping[str, str], rows: int) -> Calibration:
    """Return what sums up all boards."""
    summed = [_board(fitted) for fitted in done]
    lines = []
    for board in summed:
        lines += [
            "",
            "[[board]]",
            f'name = "{board.name}"',
            f'vendor = "{board.vendor}"',
            f'architecture = "{board.architecture}"',
            f"flops_per_j = {board.flops_per_j:.6g}",
            *(f"rates.{label} = {inline(rates)}" for label, rates in board.rates.items()),
        ]
    return Calibration(
        name=SUMMARY,
        tables=tables,
        rows=rows,
        split=SPLIT,
        error=float(np.mean([after for f in done for _, after, _ in f.errors.values()])),
        lines=lines,
        about=": what one board may borrow from others.",
    )


def _numbers(rates: Any) -> dict[str, float]:
    """Return the plain numbers of a class of rates."""
    values = {f.name: getattr(rates, f.name) for f in fields(rates) if f.name not in OF_OTHERS}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _is_full_fit(rates: Any) -> bool:
    return not isinstance(rates, GemmRates) or bool(rates.seen) or rates.calibrated


def _family(label: str, profile: Profile) -> str:
    if label in profile.gemm:
        return "gemm"
    return "reduction" if label in profile.reduction else "vector"


def _rates_lines(rates: Any, *, few: bool) -> list[str]:
    """Return a class's numbers; of few rows only those that were fitted to them."""
    if few and isinstance(rates, GemmRates):
        return [f"{n} = {getattr(rates, n):.6g}" for n in ("compute", "bandwidth", "dispatch_s")]
    lines = [f"{name} = {value:.6g}" for name, value in _numbers(rates).items()]
    if isinstance(rates, GemmRates):
        shapes = {(t.m, t.n): t.efficiency for t in rates.tiles}
        lines.append(f"splits = {sorted({tile.splits for tile in rates.tiles})}")
        lines += _wrapped("tiles", [f"[{m}, {n}, {e:.4f}]" for (m, n), e in shapes.items()])
        if rates.seen:
            lines.append(f"seen = {[list(ends) for ends in rates.seen]}")
    return lines


def _correction_lines(rates: GemmRates) -> list[str]:
    bent = rates.correction
    assert bent is not None
    return [
        *slope_lines(bent),
        *_wrapped("features", [str(x) for x in bent.features.tolist()]),
        *_wrapped("thresholds", [f"{x:.6g}" for x in bent.thresholds.tolist()]),
        *_wrapped("values", [f"{x:.4g}" for x in bent.values.tolist()]),
    ]


def _wrapped(name: str, items: Sequence[str], width: int = 98) -> list[str]:
    """Return `name = [items]`, broken at commas."""
    lines, line = [f"{name} = ["], " "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = " "
        line += f" {item},"
    return [*lines, line, "]"]
