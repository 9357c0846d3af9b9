"""Fit states, convolutions and the like to loops: `python -m lab.fits auxiliary_kernels`.

On half of all shapes: first the few numbers of the form, then trees on what they miss. Of the other
half, one half gives the interval and the rest judges it; errors are of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, hashes
from lab.fits.methods.entries import Fitted, entries, judged, plain_entry
from lab.fits.methods.least_squares import fit_named
from lab.fits.methods.monotone_trees import fit_bend
from lab.tables.kernels.auxiliary_kernels import GPUS, TABLES, read_side_rows
from lab.tables.rows import Floats, Rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.lookup import CALIBRATIONS
from simulators.kernels.families.auxiliary_kernels import (
    UNMEASURED,
    Work,
    fitted_seconds,
    form_seconds,
    work_of,
)

FOLDER = CALIBRATIONS / "side"

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


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    tables = hashes(reference, TABLES)
    for name in chosen(only, GPUS):
        fitted = fit_side(read_side_rows(reference, name), load_gpu(name))
        yield entries(name, fitted, tables)


def fit_side(rows: Sequence[Rows], gpu: Gpu) -> list[Fitted]:
    """Return the entries of one GPU, each fitted to half of its shapes."""
    by_name: dict[str, list[Rows]] = {}
    for part in rows:
        by_name.setdefault(part.name, []).append(part)
    return [
        _fit_kernel(parts, gpu)
        for parts in by_name.values()
        if sum(np.count_nonzero(~part.held_out) for part in parts) >= FEWEST_ROWS / 2
    ]


def _fit_kernel(parts: Sequence[Rows], gpu: Gpu) -> Fitted:
    seen = [part.where(~part.held_out) for part in parts]
    work = _together([work_of(part.operator) for part in seen])
    seconds = np.concatenate([part.seconds for part in seen])
    entry = plain_entry(parts[0], _fit_numbers(work, seconds, gpu))
    if seconds.size >= FEWEST_ROWS:
        plain_s = form_seconds(work, "bf16", gpu, entry.numbers)
        bend = fit_bend(work.features, plain_s, seconds, alpha=ALPHA, trees=TREES, depth=DEPTH)
        entry = replace(entry, correction=bend)
    return judged(entry, parts, seconds.size, lambda part, e: fitted_seconds(part.operator, gpu, e))


def _together(works: Sequence[Work]) -> Work:
    """Return the work of all rows."""
    names = ("flops", "moved_bytes", "blocks", "longest", "features")
    return Work(*(np.concatenate([getattr(w, name) for w in works], axis=-1) for name in names))


def _fit_numbers(work: Work, seconds: Floats, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form alone."""
    few = np.unique(np.linspace(0, seconds.size - 1, min(seconds.size, FORM_ROWS)).astype(np.int64))
    some = Work(
        work.flops[few], work.moved_bytes[few], work.blocks[few], work.longest[few],
        work.features[:, few],
    )  # fmt: skip
    low, high = (np.log([BOUNDS[name][end] for name in UNMEASURED]) for end in (0, 1))

    def model(numbers: Mapping[str, float]) -> Floats:
        return form_seconds(some, "bf16", gpu, numbers)

    start = np.log(list(UNMEASURED.values()))
    names = tuple(UNMEASURED)
    return fit_named(model, names, start, seconds[few], low=low, high=high, ridge=RIDGE)
