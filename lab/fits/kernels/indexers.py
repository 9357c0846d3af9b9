"""Fit the kernels of sparse attention: scores of an indexer, choice of keys, attention to lists.

Scores and choices are fitted as states are; attention to lists has the form `listed` and trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from lab.fits.driver import Calibration, chosen
from lab.fits.kernels import fused_kernels
from lab.fits.kernels import kernel_calibration as calibration
from lab.fits.kernels.kernel_calibration import FittedEntry, form, plain_entry
from lab.fits.methods import band_of, grouped
from lab.tables import blocks
from lab.tables.operators import indexers as tables
from lab.tables.rows import Floats, Rows, mape
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.kernels.families import attention, auxiliary_kernels
from simulators.kernels.families.family import Entry
from simulators.kernels.tiling import four_norm
from simulators.workload.operators import Attention, Compute, IndexScores
from simulators.workload.precision import BYTES


def fit_indexers(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, tables.FACTS.gpus):
        gpu, measured = load_gpu(name), tables.read_index_rows(reference, name)
        done = [
            fused_kernels.fit_auxiliary(parts, gpu)
            for parts in grouped(measured, lambda part: part.name).values()
        ]
        done += map(fit_lists, tables.read_list_rows(reference, name))
        done += fit_blocks(reference, name)
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


def fit_blocks(reference: Path, gpu: str) -> Iterator[FittedEntry]:
    """Yield the entries of kernels that were timed only in blocks, by engine and phase."""
    for facts in tables.FACTS.in_blocks:
        if gpu in facts["gpus"]:
            timed = [b for b in blocks.read_blocks(reference, gpu) if is_fitted_to(b, facts)]
            for parts in grouped(timed, attrgetter(*facts["by"])).values():
                yield from fit_in_blocks(parts, facts["form"])


def is_fitted_to(block: blocks.TimedBlock, facts: Mapping[str, Any]) -> bool:
    """Return whether a block is among those of a table of `in_blocks`."""
    return (
        block.kind == facts["kind"]
        and block.framework in facts["frameworks"]
        and block.phase in facts["phases"]
        and block.kv_dtype in facts["kv_dtypes"]
        and not any(part in block.path for part in (blocks.EAGER, blocks.LONE))
    )


def fit_in_blocks(parts: Sequence[blocks.TimedBlock], name: str) -> Iterator[FittedEntry]:
    """Yield the entries of lists and scores, fitted to the times of blocks less other kernels.

    The gaps between the kernels of a block, and the host's time, are fitted too and are no part of
    an entry. Numbers of scores have the prefix `scores_`.
    """
    first, gpu = parts[0], load_gpu(parts[0].gpu)
    with_scores = any(one.startswith(SCORES) for one in form(name).start)
    fitted = [[o for o in b.operators if _is_fitted(o, with_scores)] for b in parts]
    others = [
        blocks.kernels_s(
            replace(b, operators=tuple(o for o in b.operators if not _is_fitted(o, with_scores)))
        )
        for b in parts
    ]
    measured = np.concatenate([b.seconds for b in parts])
    aside = np.concatenate([b.held_out for b in parts])

    def seconds(numbers: calibration.Numbers) -> Floats:
        each = [
            sum((_seconds(o, gpu, numbers) for o in some), rest + numbers["gap_s"])
            for some, rest in zip(fitted, others, strict=True)
        ]
        return four_norm(np.concatenate(each), numbers.get(HOST, 0.0))

    start = form(name).start
    near = {**start, HOST: float(np.min(measured[~aside]))} if HOST in start else start
    numbers = form(name).fit(lambda one: seconds(one)[~aside], measured[~aside], near=near)
    predicted = seconds(numbers)[aside]
    band, error = band_of(predicted, measured[aside]), mape(predicted, measured[aside])
    kernels = {
        name_of(o, b): _own(o, numbers) for b, some in zip(parts, fitted, strict=True) for o in some
    }
    for kernel, own in kernels.items():
        entry = Entry(first.framework, own, None, None, band, first.gpu, calibrated=True)
        yield FittedEntry(kernel, entry, int(np.sum(~aside)), error)


SCORES, HOST, NARROW = "scores_", "host_s", "narrow"
"""Prefix of the numbers of scores, the host's time, and the rate with 8-bit keys over that with
16-bit keys, in forms of blocks."""


def name_of(operator: Attention | IndexScores, block: blocks.TimedBlock) -> str:
    """Return the name of an operator's entry: engine, kernel and precisions."""
    if isinstance(operator, Attention):
        kernel, dtype = attention.kernel_of(operator), f"bf16_{block.kv_dtype}"
    else:
        kernel, dtype = auxiliary_kernels.kernel_of(operator), auxiliary_kernels.INDEX_DTYPE
    return f"{block.framework}.{kernel}.{dtype}"


def _own(operator: Compute, numbers: calibration.Numbers) -> dict[str, float]:
    """Return the numbers of an operator's kernel among those of a block."""
    if isinstance(operator, IndexScores):
        return {k.removeprefix(SCORES): v for k, v in numbers.items() if k.startswith(SCORES)}
    others = ("gap_s", HOST, NARROW)
    own = {k: v for k, v in numbers.items() if not k.startswith(SCORES) and k not in others}
    if isinstance(operator, Attention) and BYTES[operator.kv_dtype] < BYTES[operator.dtype]:
        own["compute"] *= numbers.get(NARROW, 1.0)
    return own


def _seconds(operator: Attention | IndexScores, gpu: Gpu, numbers: calibration.Numbers) -> Floats:
    own = _own(operator, numbers)
    if isinstance(operator, Attention):
        return attention.form_seconds(operator, gpu, own)
    return auxiliary_kernels.fitted_seconds(operator, gpu, own)


def _is_fitted(operator: Compute, with_scores: bool) -> TypeGuard[Attention | IndexScores]:
    if isinstance(operator, Attention):
        return operator.listed
    return with_scores and isinstance(operator, IndexScores)
