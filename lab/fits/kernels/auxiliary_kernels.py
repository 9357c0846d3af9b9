"""Fit state updates, convolutions, quantisation and embeddings to measured times.

The form's numbers are fitted to half of all shapes, then monotone trees to what the form misses. Of
the other half, one half gives the interval and the rest judges it; errors are of both. GPUs whose
kernels were timed only inside an engine have pointwise chains of layers, without trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen
from lab.fits.methods.entries import FittedEntry, entries, judged, plain_entry
from lab.fits.methods.forms import form
from lab.fits.methods.monotone_trees import fit_correction
from lab.tables.rows import Rows, evenly
from lab.tables.tensor_kernels import (
    AUXILIARY_GPUS,
    AUXILIARY_TABLES,
    LAYER_GPUS,
    LAYER_PROFILES,
    read_auxiliary_rows,
    read_chain_rows,
)
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.kernels.corrections import LEAF_STEP
from simulators.kernels.families.auxiliary_kernels import (
    KernelWork,
    fitted_seconds,
    form_seconds,
    work_of,
)
from simulators.kernels.families.streaming import chain_seconds

FOLDER = CALIBRATIONS / "auxiliary"
FORM_ROWS, RIDGE, CHAIN_RIDGE = 2000, 0.1, 0.01
ALPHA, TREES, DEPTH = 0.6, 40, 3
CHAIN_SPLIT = "half of the sizes, by a hash of the size; errors are of the other half"
FEWEST_ROWS = 60
"""Least fitted rows for trees; with fewer than half of them a kernel has no entry."""


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, [*AUXILIARY_GPUS, *LAYER_GPUS]):
        gpu = load_gpu(name)
        if name not in AUXILIARY_GPUS:
            chains = [_fit_chain(part, gpu) for part in read_chain_rows(reference, name)]
            yield entries(name, chains, [LAYER_PROFILES], CHAIN_SPLIT)
            continue
        by_name: dict[str, list[Rows]] = {}
        for part in read_auxiliary_rows(reference, name):
            by_name.setdefault(part.name, []).append(part)
        done = [
            _fit_kernel(parts, gpu)
            for parts in by_name.values()
            if sum(np.count_nonzero(~part.held_out) for part in parts) >= FEWEST_ROWS / 2
        ]
        yield entries(name, done, AUXILIARY_TABLES, leaf_step=LEAF_STEP)


def _fit_chain(rows: Rows, gpu: Gpu) -> FittedEntry:
    """Return the entry of one pointwise chain."""
    seen = rows.where(~rows.held_out)
    operator = seen.operator
    numbers = form("chain").fit(
        lambda numbers: chain_seconds(operator, gpu, numbers), seen.seconds, ridge=CHAIN_RIDGE
    )
    return judged(
        plain_entry(rows, numbers),
        [rows],
        len(seen),
        lambda part, entry: chain_seconds(part.operator, gpu, entry.numbers),
    )


def _fit_kernel(parts: Sequence[Rows], gpu: Gpu) -> FittedEntry:
    seen = [part.where(~part.held_out) for part in parts]
    names = ("flops", "moved_bytes", "blocks", "longest", "features")
    works = [work_of(part.operator) for part in seen]
    columns = [np.concatenate([getattr(w, name) for w in works], axis=-1) for name in names]
    work, seconds = KernelWork(*columns), np.concatenate([part.seconds for part in seen])
    few = evenly(seconds.size, FORM_ROWS)
    some = KernelWork(*(column[..., few] for column in columns))
    numbers = form("auxiliary").fit(
        lambda numbers: form_seconds(some, "bf16", gpu, numbers), seconds[few], ridge=RIDGE
    )
    entry = plain_entry(parts[0], numbers)
    if seconds.size >= FEWEST_ROWS:
        plain_s = form_seconds(work, "bf16", gpu, numbers)
        correction = fit_correction(
            work.features, plain_s, seconds, alpha=ALPHA, trees=TREES, depth=DEPTH
        )
        entry = replace(entry, correction=correction)
    return judged(entry, parts, seconds.size, lambda part, e: fitted_seconds(part.operator, gpu, e))
