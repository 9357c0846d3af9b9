"""Fit the kernels of sparse attention: scores of an indexer, choice of keys, attention to lists.

Scores and choices are fitted as states are; attention to lists has the form `listed` and trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import numpy as np

from lab.fits.driver import Calibration, chosen
from lab.fits.kernels import fused_kernels
from lab.fits.kernels import kernel_calibration as calibration
from lab.fits.kernels.kernel_calibration import FittedEntry, form, plain_entry
from lab.fits.methods import band_of, grouped
from lab.tables import blocks
from lab.tables import indexers as tables
from lab.tables.rows import Floats, Rows, mape
from simulators.catalog.gpu import load_gpu
from simulators.kernels.families import attention
from simulators.kernels.families.family import Entry
from simulators.workload.operators import Attention, Compute


def fit_indexers(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, tables.FACTS.gpus):
        gpu, measured = load_gpu(name), tables.read_index_rows(reference, name)
        done = [
            fused_kernels.fit_auxiliary(parts, gpu)
            for parts in grouped(measured, lambda part: part.name).values()
        ]
        done += map(fit_lists, tables.read_list_rows(reference, name))
        done += fit_lists_in_blocks(reference, name)
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


def fit_lists_in_blocks(reference: Path, gpu: str) -> Iterator[FittedEntry]:
    """Yield the entries of kernels that were timed only in blocks, by precision of the cache."""
    found = blocks.read_blocks(reference, gpu)
    timed = [b for b in found if (b.kind, b.framework) in tables.IN_BLOCKS.get(gpu, ())]
    for parts in grouped(timed, lambda b: (b.framework, b.kv_dtype)).values():
        yield fit_lists_of(parts)


def fit_lists_of(parts: Sequence[blocks.TimedBlock]) -> FittedEntry:
    """Return the entry of attention to lists, fitted to the times of blocks less other kernels.

    The gaps between the kernels of a block are fitted too and left out of the entry's time.
    """
    first, gpu = parts[0], load_gpu(parts[0].gpu)
    lists = [[o for o in b.operators if _is_list(o)] for b in parts]
    others = [
        blocks.kernels_s(replace(b, operators=tuple(o for o in b.operators if not _is_list(o))))
        for b in parts
    ]
    measured = np.concatenate([b.seconds for b in parts])
    aside = np.concatenate([b.held_out for b in parts])

    def seconds(numbers: calibration.Numbers) -> Floats:
        each = [
            sum((attention.form_seconds(o, gpu, numbers) for o in some), rest + numbers["gap_s"])
            for some, rest in zip(lists, others, strict=True)
        ]
        return np.concatenate(each)

    numbers = form("listed_in_block").fit(lambda one: seconds(one)[~aside], measured[~aside])
    predicted = seconds(numbers)[aside]
    band = band_of(predicted, measured[aside])
    name = f"{first.framework}.{attention.kernel_of(lists[0][0])}.bf16_{first.kv_dtype}"
    entry = Entry(first.framework, numbers, None, None, band, first.gpu, calibrated=True)
    return FittedEntry(name, entry, int(np.sum(~aside)), mape(predicted, measured[aside]))


def _is_list(operator: Compute) -> TypeGuard[Attention]:
    return isinstance(operator, Attention) and operator.listed
