"""Tables of side kernels become calibrations: `python -m lab.fits.auxiliary_kernels`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.methods.least_squares import fit_log
from lab.fits.methods.monotone_trees import bend_lines, fit_bend
from lab.tables.kernels.auxiliary_kernels import GPUS, SideRows, read_side_rows, side_tables
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.report import print_checks
from simulators.kernels.families.auxiliary_kernels import (
    UNMEASURED,
    Work,
    fitted_seconds,
    form_seconds,
    work_of,
)
from simulators.kernels.frameworks import SIDE_FOLDER, Entry
from simulators.kernels.intervals import WIDEST, band_of

Floats = NDArray[np.float64]

FORM_ROWS = 2000
ALPHA, TREES, DEPTH = 0.6, 40, 3
RIDGE = 0.1

BOUNDS = {
    "start_s": (2e-7, 1e-4), "compute": (1e-3, 1.0), "bandwidth": (0.02, 1.0),
    "block_clocks": (1e-3, 1e6), "chain_clocks": (1e-6, 1e4),
}  # fmt: skip
"""What the numbers stay between; parts of a data sheet's rate are at most one."""

FEWEST_ROWS = 60
"""A kernel with fewer fitted rows than this has no trees, and half of them none at all."""

BANDED = 0.75
"""Up to this part of the split, rows no fit saw give the interval; the rest judge it."""


@dataclass(frozen=True)
class Fitted:
    """One kernel's entry, the rows it rests on and its error on shapes nothing saw."""

    entry: Entry
    rows: int
    error: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the GPUs asked for, or all, and report."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.fits.auxiliary_kernels", description=__doc__
    )
    parser.add_argument("--gpu", action="append", help="only this one; may be given again")
    asked = parser.parse_args(arguments)
    reference = reference_folder()
    if reference is None or not side_tables(reference):
        raise UserError("no measured side kernels: set SWEEPER_REFERENCE to a reference folder")
    lines = []
    for name in asked.gpu or GPUS:
        fitted = fit_side(read_side_rows(reference, name), load_gpu(name))
        write_calibration(SIDE_FOLDER / f"{name}.toml", _text(reference, name, fitted))
        lines += [
            Check(f"{name} {kernel} MAPE", 100.0 * fit.error, "%", rows=fit.rows)
            for kernel, fit in fitted.items()
        ]
    print_checks(lines)


def fit_side(rows: Sequence[SideRows], gpu: Gpu) -> dict[str, Fitted]:
    """Return the entries of one GPU by their names, each fitted to half of its shapes."""
    names = dict.fromkeys(f"{part.framework}.{part.kernel}.bf16" for part in rows)
    by_name = {
        name: [part for part in rows if f"{part.framework}.{part.kernel}.bf16" == name]
        for name in names
    }
    enough = {
        name: parts
        for name, parts in by_name.items()
        if sum(np.count_nonzero(~part.held_out) for part in parts) >= FEWEST_ROWS / 2
    }
    return {name: _fit_kernel(parts, gpu) for name, parts in enough.items()}


def _fit_kernel(parts: Sequence[SideRows], gpu: Gpu) -> Fitted:
    seen = [part.where(~part.held_out) for part in parts]
    unseen = [part.where(part.held_out) for part in parts]
    work, seconds = _together(seen)
    numbers = _fit_numbers(work, seconds, gpu)
    entry = Entry(parts[0].framework, numbers, None, None, WIDEST, gpu.name, calibrated=True)
    if seconds.size >= FEWEST_ROWS:
        plain_s = form_seconds(work, "bf16", gpu, numbers)
        bend = fit_bend(work.features, plain_s, seconds, alpha=ALPHA, trees=TREES, depth=DEPTH)
        entry = replace(entry, bend=bend)
    predicted = np.concatenate([fitted_seconds(part.operator, gpu, entry) for part in unseen])
    measured = np.concatenate([part.seconds for part in unseen])
    banded = np.concatenate([part.place for part in unseen]) < BANDED
    entry = replace(entry, band=band_of(predicted[banded], measured[banded]))
    return Fitted(entry, seconds.size, float(np.mean(np.abs(predicted / measured - 1.0))))


def _together(parts: Sequence[SideRows]) -> tuple[Work, Floats]:
    """Return the work of all rows, and their times."""
    works = [work_of(part.operator) for part in parts]
    joined = Work(
        *(
            np.concatenate([getattr(work, name) for work in works], axis=-1)
            for name in ("flops", "moved_bytes", "blocks", "longest", "features")
        )
    )
    return joined, np.concatenate([part.seconds for part in parts])


def _fit_numbers(work: Work, seconds: Floats, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form alone."""
    few = np.unique(np.linspace(0, seconds.size - 1, min(seconds.size, FORM_ROWS)).astype(np.int64))
    some = Work(
        work.flops[few], work.moved_bytes[few], work.blocks[few], work.longest[few],
        work.features[:, few],
    )  # fmt: skip
    low, high = (np.log([BOUNDS[name][i] for name in UNMEASURED]) for i in (0, 1))
    start = np.log(list(UNMEASURED.values()))

    def model(p: Floats) -> Floats:
        return form_seconds(some, "bf16", gpu, dict(zip(UNMEASURED, np.exp(p), strict=True)))

    fitted = fit_log(
        model,
        start,
        seconds[few],
        weights=np.ones(few.size),
        ridge=np.full(start.size, RIDGE),
        bounds=(low, high),
    )
    return dict(zip(UNMEASURED, np.exp(fitted).tolist(), strict=True))


def _text(reference: Path, gpu: str, fitted: dict[str, Fitted]) -> str:
    """Return the calibration file of one GPU."""
    tables = side_tables(reference)
    measured = ", ".join(f'"{table.relative_to(reference)}"' for table in tables)
    hashes = ", ".join(f'"{sha256_of(table)}"' for table in tables)
    lines = [
        f"# Written by `python -m lab.fits.auxiliary_kernels` for {gpu}.",
        "# To change a number, change the fit.",
        "[provenance]",
        f"measured = [{measured}]",
        f"sha256 = [{hashes}]",
        f"rows = {sum(fit.rows for fit in fitted.values())}",
        'split = "half of the shapes, by a hash of the shape; errors are of the other half"',
        f"held_out_mape = {np.mean([fit.error for fit in fitted.values()]):.4f}",
    ]
    for name, fit in fitted.items():
        numbers = ", ".join(f"{key} = {value:.5g}" for key, value in fit.entry.numbers.items())
        ends = [
            ", ".join(f"{x:.4f}" for x in end) for end in (fit.entry.band.lo, fit.entry.band.hi)
        ]
        lines += ["", f'[entry."{name}"]', f"numbers = {{ {numbers} }}"]
        lines += [f"held_out_mape = {fit.error:.4f}"]
        lines += [f"band = {{ lo = [{ends[0]}], hi = [{ends[1]}] }}"]
        if fit.entry.bend is not None:
            lines += [f'[entry."{name}".bend]', *bend_lines(fit.entry.bend)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
