"""Measurements become calibrations: `python -m lab.fits.fp32_kernels`.

Without arguments every board of the reference folder is fitted again, as shipped. With
`--device NAME --measured FILE` one device is: with hundreds of rows of an operator class in full,
with as few as ten by three numbers. The table that is printed shows the error before, from the data
sheet alone, and after, on shapes the fit did not see.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.fits.fp32_forms import cross_validated_s, fit_few, fit_full, rates_of
from lab.tables.kernels.fp32_kernels import (
    SPLIT,
    TABLES,
    Rows,
    operator_of,
    read_rows,
    read_table,
    rows_of_table,
)
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE
from simulators.core.report import print_checks
from simulators.kernels.intervals import WIDEST, Band, band_of
from simulators.kernels.levels import (
    BOARDS,
    Board,
    boards,
    donor_of,
    stranger_bands,
    zero_shot_profile,
)
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import GemmRates, Profile

FULL_ROWS, FULL_STREAM_ROWS = 200, 30
"""Rows from which a class of products has tables of its own; a class without tables needs fewer."""

LEAST_ROWS = 2
"""One to fit to and one to judge."""

FEW_ROWS, SEEDS = 10, 4
"""Of the few-shot exercise every board goes through as if it were new."""

SHIPPED = PACKAGE / "kernels" / "calibration"
OWN = Path("catalog") / "kernels"


@dataclass(frozen=True)
class Fitted:
    """A device's profile, with what held-out rows say about it."""

    gpu: Gpu
    level: str
    profile: Profile
    rows: list[Rows]
    donor: str
    errors: dict[str, tuple[float, float, int]]  # by class: before, after, rows judged
    bands: dict[str, Band]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write and report."""
    parser = argparse.ArgumentParser(prog="python -m lab.fits.fp32_kernels", description=__doc__)
    parser.add_argument("--device", help="the GPU, by the name of its data sheet")
    parser.add_argument("--measured", type=Path, help="its measurements, Parquet or CSV")
    parser.add_argument("--out", type=Path, help="folder of the calibration (catalog/kernels)")
    asked = parser.parse_args(arguments)
    if (asked.device is None) != (asked.measured is None):
        parser.error("--device and --measured belong together")
    try:
        if asked.device:
            fit_device(asked.device, asked.measured, asked.out or OWN)
        else:
            fit_reference(asked.out or SHIPPED)
    except UserError as error:
        sys.exit(f"fit: {error}")


def fit_device(name: str, measured: Path, out: Path) -> None:
    """Calibrate one device from a file of its measurements."""
    gpu = load_gpu(name)
    found = [rows for some, _ in rows_of_table(read_table(measured), gpu.name) for rows in some]
    parts = [part for part in found if len(part) >= LEAST_ROWS]
    if not found:
        raise UserError(f"{measured} has no operator that is known; column 'op' names them")
    for part in found:
        if len(part) < LEAST_ROWS:
            print(f"left out: {part.label} has {len(part)} row, and needs {LEAST_ROWS}")
    if not parts:
        raise UserError(f"{measured} has too few rows of any operator")
    fitted = _fitted(gpu, parts, [board for board in boards() if board.name != gpu.name])
    table = {"measured": [measured.name], "sha256": [sha256_of(measured)]}
    write_calibration(out / f"{gpu.name}.toml", _text(fitted, table))
    print_checks(_report([fitted]))
    print(f"\nWritten: {out / f'{gpu.name}.toml'}, level {fitted.level}")


def fit_reference(out: Path) -> None:
    """Fit every board of the reference folder, and sum them up for boards not seen."""
    reference = reference_folder()
    if reference is None:
        raise UserError("there is no reference folder; set SWEEPER_REFERENCE to where it is")
    rows, skipped = read_rows(reference)
    for problem in skipped:
        print(f"skipped: {problem}")
    names = [name for name in TABLES if (reference / name).is_file()]
    table = {"measured": names, "sha256": [sha256_of(reference / name) for name in names]}
    done = []
    for name in sorted({part.gpu for part in rows}):
        fitted = _fitted(load_gpu(name), [part for part in rows if part.gpu == name], ())
        write_calibration(out / f"{name}.toml", _text(fitted, table))
        done.append(fitted)
    summed = [_board(fitted) for fitted in done]
    summed = [_as_if_new(fitted, board, summed) for fitted, board in zip(done, summed, strict=True)]
    total = sum(len(part) for part in rows)
    error = float(np.mean([after for f in done for _, after, _ in f.errors.values()]))
    write_calibration(out / f"{BOARDS}.toml", _boards_text(summed, table, total, error))
    print_checks(_report(done))


def _fitted(gpu: Gpu, parts: list[Rows], peers: Sequence[Board]) -> Fitted:
    """Fit every class of one device at the highest level its rows allow."""
    before = zero_shot_profile(
        gpu.name, gpu.vendor, gpu.architecture, gpu.peak("fp32") / gpu.tdp_w, among=peers
    )
    kept = [part.where(~part.held_out) if is_full(part) else part for part in parts]
    level = "full" if any(map(is_full, parts)) else "few_shot"
    profile, errors, bands = before, {}, {}
    # Batched products first: the dispatch they show is an upper bound for single ones.
    for part, mine in sorted(zip(parts, kept, strict=True), key=lambda pair: pair[0].label):
        fit = fit_full if is_full(part) else fit_few
        folds = 3 if is_full(part) else min(len(mine), FEW_ROWS)
        profile = fit(mine, gpu, profile)
        judged = mine.where(mine.layer_shaped) if mine.layer_shaped.any() else mine
        blind_s = cross_validated_s(mine, gpu, before, fit, folds)
        blind_s = blind_s[mine.layer_shaped] if mine.layer_shaped.any() else blind_s
        known = np.isfinite(blind_s)
        if is_full(part):
            bands[part.label] = band_of(blind_s[known], judged.seconds[known])
            judged = part.where(part.held_out)
            blind_s = call_seconds(operator_of(judged), gpu, profile)
            known = np.isfinite(blind_s)
        else:
            bands[part.label] = stranger_bands("few_shot", peers).get(part.label, WIDEST)
        untouched_s = call_seconds(operator_of(judged), gpu, before)
        errors[part.label] = (
            _mape(untouched_s, judged.seconds),
            _mape(blind_s[known], judged.seconds[known]),
            len(judged),
        )
    donor = (
        donor_of(gpu.architecture, [b for b in peers if b.vendor == gpu.vendor]) if peers else ""
    )
    return Fitted(
        gpu=gpu,
        level=level,
        profile=replace(profile, level=level),
        rows=kept,
        donor=donor,
        errors=errors,
        bands=bands,
    )


def is_full(part: Rows) -> bool:
    """Say whether a class has enough rows for tables of its own, and so a half to hold out."""
    return len(part) >= (FULL_ROWS if part.label in ("linear", "bmm", "conv") else FULL_STREAM_ROWS)


def _board(fitted: Fitted) -> Board:
    """Return a board in the few numbers others may borrow."""
    rates = {
        part.label: {
            name: value
            for name, value in _numbers(rates_of(fitted.profile, part.label)).items()
            if name not in ("tail", "prologue", "prologue_rate", "k_step", "load_bytes_per_clock")
        }
        for part in fitted.rows
    }
    return Board(
        name=fitted.gpu.name,
        vendor=fitted.gpu.vendor,
        architecture=fitted.gpu.architecture,
        flops_per_j=fitted.gpu.peak("fp32") / fitted.gpu.tdp_w,
        rates=rates,
        bands={},
    )


def _as_if_new(fitted: Fitted, board: Board, among: Sequence[Board]) -> Board:
    """Return the board with the bands that leaving it out gives, without and with a few rows."""
    gpu = fitted.gpu
    others = [replace(other, bands={"zero_shot": {}, "few_shot": {}}) for other in among]
    blank = zero_shot_profile(
        gpu.name, gpu.vendor, gpu.architecture, board.flops_per_j, among=others
    )
    zero, few = {}, {}
    for part in fitted.rows:
        rows = part.where(part.layer_shaped) if part.layer_shaped.any() else part
        zero[part.label] = band_of(call_seconds(operator_of(rows), gpu, blank), rows.seconds)
        pairs = [few_shot_exercise(rows, gpu, blank, FEW_ROWS, seed) for seed in range(SEEDS)]
        few[part.label] = band_of(*(np.concatenate(column) for column in zip(*pairs, strict=True)))
    return replace(board, bands={"zero_shot": zero, "few_shot": few})


def few_shot_exercise(
    rows: Rows, gpu: Gpu, blank: Profile, count: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return predicted and measured seconds of rows of other shapes than the `count` drawn."""
    draw = np.random.default_rng(np.random.SeedSequence([seed, count]))
    chosen = draw.choice(len(rows), size=min(count, len(rows) // 2), replace=False)
    exact = np.stack([rows.sizes[name] for name in rows.sizes if name != "batch"], axis=1)
    taken = {tuple(row) for row in exact[chosen]}
    rest = rows.where(np.array([tuple(row) not in taken for row in exact], bool))
    profile = fit_few(rows.where(chosen), gpu, blank)
    return call_seconds(operator_of(rest), gpu, profile), rest.seconds


def _report(done: Sequence[Fitted]) -> list[Check]:
    return [
        Check(
            f"{fitted.gpu.name} {label} MAPE",
            100.0 * after,
            "%",
            rows=rows,
            note=f"{fitted.level}; from the data sheet alone {100.0 * before:.1f} %",
        )
        for fitted in done
        for label, (before, after, rows) in sorted(fitted.errors.items())
    ]


def _mape(predicted_s: NDArray[np.float64], measured_s: NDArray[np.float64]) -> float:
    return float(np.mean(np.abs(predicted_s / measured_s - 1.0)))


def _numbers(rates: Any) -> dict[str, float]:
    """Return the plain numbers of a class of rates."""
    values = {f.name: getattr(rates, f.name) for f in fields(rates) if f.name != "calibrated"}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _text(fitted: Fitted, table: dict[str, list[str]]) -> str:
    """Return the calibration file of one device."""
    before = {label: after for label, (_, after, _) in fitted.errors.items()}
    lines = [
        f"# Written by `python -m lab.fits.fp32_kernels` for {fitted.gpu.name}.",
        "# To change a number, change the fit.",
        f'level = "{fitted.level}"',
        f'donor = "{fitted.donor}"',
        "",
        *_provenance(table, sum(map(len, fitted.rows)), float(np.mean(list(before.values())))),
        "",
        "[provenance.held_out_mape_of]",
        *(f"{label} = {error:.4f}" for label, error in sorted(before.items())),
    ]
    for part in fitted.rows:
        rates = rates_of(fitted.profile, part.label)
        few = fitted.level == "few_shot" or not _is_full_fit(rates)
        family = _family(part.label, fitted.profile)
        lines += ["", f"[{family}.{part.label}]", *_rates_lines(rates, few=few)]
        if isinstance(rates, GemmRates) and rates.correction is not None:
            lines += ["", f"[{family}.{part.label}.correction]", *_correction_lines(rates)]
    for label, band in sorted(fitted.bands.items()):
        lines += ["", f"[bands.{label}]", *_band_lines(band)]
    return "\n".join(lines)


def _is_full_fit(rates: Any) -> bool:
    return not isinstance(rates, GemmRates) or bool(rates.seen) or rates.calibrated


def _provenance(table: dict[str, list[str]], rows: int, error: float) -> list[str]:
    return [
        "[provenance]",
        f"measured = {_strings(table['measured'])}",
        f"sha256 = {_strings(table['sha256'])}",
        f"rows = {rows}",
        f'split = "{SPLIT}"',
        f"held_out_mape = {error:.4f}",
    ]


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
        splits = sorted({tile.splits for tile in rates.tiles})
        shapes = {(t.m, t.n): t.efficiency for t in rates.tiles}
        tiles = ", ".join(f"[{m}, {n}, {e:.4f}]" for (m, n), e in shapes.items())
        lines += [f"splits = {splits}", *_wrapped("tiles", tiles)]
        if rates.seen:
            lines.append(f"seen = {[list(ends) for ends in rates.seen]}")
    return lines


def _correction_lines(rates: GemmRates) -> list[str]:
    bent = rates.correction
    assert bent is not None
    return [
        f"alpha = {bent.alpha}",
        f"offset = {bent.offset:.6g}",
        f"log_t_lo = {bent.log_t_lo:.6g}",
        f"log_t_hi = {bent.log_t_hi:.6g}",
        f"depth = {bent.depth}",
        *_wrapped("features", ", ".join(map(str, bent.features.tolist()))),
        *_wrapped("thresholds", ", ".join(f"{x:.6g}" for x in bent.thresholds.tolist())),
        *_wrapped("values", ", ".join(f"{x:.4g}" for x in bent.values.tolist())),
    ]


def _band_lines(band: Band) -> list[str]:
    return [
        f"lo = [{', '.join(f'{x:.4f}' for x in band.lo)}]",
        f"hi = [{', '.join(f'{x:.4f}' for x in band.hi)}]",
    ]


def _boards_text(
    summed: Sequence[Board], table: dict[str, list[str]], rows: int, error: float
) -> str:
    """Return the file that sums up all boards."""
    lines = [
        "# Written by `python -m lab.fits.fp32_kernels`: what one board may borrow from others.",
        "# To change a number, change the fit.",
        *_provenance(table, rows, error),
    ]
    for board in summed:
        lines += [
            "",
            "[[board]]",
            f'name = "{board.name}"',
            f'vendor = "{board.vendor}"',
            f'architecture = "{board.architecture}"',
            f"flops_per_j = {board.flops_per_j:.6g}",
        ]
        for label, rates in board.rates.items():
            numbers = ", ".join(f"{name} = {value:.5g}" for name, value in rates.items())
            lines.append(f"rates.{label} = {{ {numbers} }}")
        for level, bands in board.bands.items():
            for label, band in bands.items():
                lines.append(f"bands.{level}.{label} = {{ {', '.join(_band_lines(band))} }}")
    return "\n".join(lines)


def _strings(items: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def _wrapped(name: str, items: str, width: int = 98) -> list[str]:
    """Return `name = [items]`, broken at commas."""
    lines, line = [f"{name} = ["], " "
    for item in items.replace("], [", "]; [").split("; " if "], [" in items else ", "):
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = " "
        line += f" {item},"
    return [*lines, line, "]"]


if __name__ == "__main__":
    main()
