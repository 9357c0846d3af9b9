"""Fit states, convolutions and the like to measured times: `python -m lab.fits auxiliary_kernels`.

On half of all shapes: first the few numbers of the form, then trees on what they miss. Of the other
half, one half gives the interval and the rest judges it; errors are of both. GPUs whose kernels
were timed inside an engine alone have pointwise chains instead, by another form and no trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, hashes
from lab.fits.kernels.form_starts import CHAIN
from lab.fits.methods.entries import Fitted, entries, judged, plain_entry
from lab.fits.methods.monotone_trees import fit_bend
from lab.tables.kernels.auxiliary_kernels import GPUS, TABLES, read_auxiliary_rows
from lab.tables.kernels.engine_layers import GPUS as LAYER_GPUS
from lab.tables.kernels.engine_layers import LAYERS, read_chain_rows
from lab.tables.rows import Floats, Rows, evenly
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.kernels.families.auxiliary_kernels import (
    UNMEASURED,
    Work,
    fitted_seconds,
    form_seconds,
    work_of,
)
from simulators.kernels.families.pointwise import chain_seconds

FOLDER = CALIBRATIONS / "auxiliary"

FORM_ROWS = 2000
ALPHA, TREES, DEPTH = 0.6, 40, 3
RIDGE = 0.1

BOUNDS = {
    "start_s": (2e-7, 1e-4),
    "compute": (1e-3, 1.0),
    "bandwidth": (0.02, 1.0),
    "block_clocks": (1e-3, 1e6),
    "chain_clocks": (1e-6, 1e4),
}
"""What the numbers stay between; parts of a data sheet's rate are at most one."""

CHAIN_RIDGE = 0.01
CHAIN_BOUNDS = {
    "start_s": (5e-7, 2e-5),
    "l2": (1.0, 64.0),
    "share": (0.02, 1.0),
    "rest": (0.001, 0.5),
    "bandwidth": (0.3, 1.0),
}
CHAIN_SPLIT = "half of the sizes, by a hash of the size; errors are of the other half"

FEWEST_ROWS = 60
"""A kernel with fewer fitted rows than this has no trees, and half of them none at all."""


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, [*GPUS, *LAYER_GPUS]):
        gpu = load_gpu(name)
        if name in GPUS:
            done = fit_auxiliary(read_auxiliary_rows(reference, name), gpu)
            yield entries(name, done, hashes(reference, TABLES))
        else:
            done = [fit_chain(part, gpu) for part in read_chain_rows(reference, name)]
            yield entries(name, done, hashes(reference, [LAYERS]), CHAIN_SPLIT)


def fit_auxiliary(rows: Sequence[Rows], gpu: Gpu) -> list[Fitted]:
    """Return the entries of one GPU, each fitted to half of its shapes."""
    by_name: dict[str, list[Rows]] = {}
    for part in rows:
        by_name.setdefault(part.name, []).append(part)
    return [
        _fit_kernel(parts, gpu)
        for parts in by_name.values()
        if sum(np.count_nonzero(~part.held_out) for part in parts) >= FEWEST_ROWS / 2
    ]


def fit_chain(rows: Rows, gpu: Gpu) -> Fitted:
    """Return the entry of one pointwise chain."""
    seen = rows.where(~rows.held_out)
    operator = seen.operator
    numbers = _fitted_numbers(
        lambda numbers: chain_seconds(operator, gpu, numbers),
        CHAIN,
        CHAIN_BOUNDS,
        seen.seconds,
        CHAIN_RIDGE,
    )
    return judged(
        plain_entry(rows, numbers),
        [rows],
        len(seen),
        lambda part, entry: chain_seconds(part.operator, gpu, entry.numbers),
    )


def _fit_kernel(parts: Sequence[Rows], gpu: Gpu) -> Fitted:
    seen = [part.where(~part.held_out) for part in parts]
    work = _together([work_of(part.operator) for part in seen])
    seconds = np.concatenate([part.seconds for part in seen])
    entry = plain_entry(parts[0], _fit_form(work, seconds, gpu))
    if seconds.size >= FEWEST_ROWS:
        plain_s = form_seconds(work, "bf16", gpu, entry.numbers)
        bend = fit_bend(work.features, plain_s, seconds, alpha=ALPHA, trees=TREES, depth=DEPTH)
        entry = replace(entry, correction=bend)
    return judged(entry, parts, seconds.size, lambda part, e: fitted_seconds(part.operator, gpu, e))


def _together(works: Sequence[Work]) -> Work:
    """Return the work of all rows."""
    names = ("flops", "moved_bytes", "blocks", "longest", "features")
    return Work(*(np.concatenate([getattr(w, name) for w in works], axis=-1) for name in names))


def _fit_form(work: Work, seconds: Floats, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form alone."""
    few = evenly(seconds.size, FORM_ROWS)
    some = Work(
        work.flops[few],
        work.moved_bytes[few],
        work.blocks[few],
        work.longest[few],
        work.features[:, few],
    )
    return _fitted_numbers(
        lambda numbers: form_seconds(some, "bf16", gpu, numbers),
        UNMEASURED,
        BOUNDS,
        seconds[few],
        RIDGE,
    )


def _fitted_numbers(
    model: Callable[[dict[str, float]], Floats],
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    seconds: Floats,
    ridge: float,
) -> dict[str, float]:
    """Return the numbers of a form between their bounds."""
    low, high = (np.log([bounds[name][end] for name in start]) for end in (0, 1))
    logs = np.log(list(start.values()))
    return fit_named(model, tuple(start), logs, seconds, low=low, high=high, ridge=ridge)
