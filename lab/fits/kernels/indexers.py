"""Fit the kernels of sparse attention: scores of an indexer, choice of keys, attention to lists.

Scores and choices are fitted as states are; attention to lists has the form `listed` and trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lab.fits.driver import Calibration, chosen
from lab.fits.kernels import fused_kernels
from lab.fits.kernels import kernel_calibration as calibration
from lab.fits.kernels.kernel_calibration import FittedEntry, form, plain_entry
from lab.fits.methods import grouped
from lab.tables import indexers as tables
from lab.tables.rows import Rows
from simulators.catalog.gpu import load_gpu
from simulators.kernels.families import attention


def fit_indexers(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, tables.FACTS.gpus):
        gpu, measured = load_gpu(name), tables.read_index_rows(reference, name)
        done = [
            fused_kernels.fit_auxiliary(parts, gpu)
            for parts in grouped(measured, lambda part: part.name).values()
        ]
        done += map(fit_lists, tables.read_list_rows(reference, name))
        yield calibration.entries("indexers", name, done, leaf_step=1e-3, digits=3)


def fit_lists(rows: Rows) -> FittedEntry:
    """Return the entry of attention to lists of keys."""
    gpu, seen = load_gpu(rows.gpu), rows.where(~rows.held_out)
    operator = seen.operator
    numbers = form("listed").fit(
        lambda numbers: attention.form_seconds(operator, gpu, numbers), seen.seconds
    )
    seconds = attention.form_seconds(operator, gpu, numbers)
    features = attention.attention_features(operator, seconds.shape)
    trees = fused_kernels.CONFIG.auxiliary
    correction = calibration.fit_correction(features, seconds, seen.seconds, **trees)
    return calibration.judged(
        replace(plain_entry(rows, numbers), correction=correction),
        [rows],
        len(seen),
        lambda part, entry: attention.fitted_seconds(part.operator, gpu, entry),
    )
