"""How far attention is from chunks on a prefix and mixed batches, and experts from other tables.

Rows are of shapes nothing was fitted to: of tables the calibrations saw, the held-out half; of
others, all. Where a table is another library's, the line says whose numbers stand in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.fused_kernels import BANDED, predicted_s
from lab.tables.kernels.expert_layers import (
    FRONTIER,
    FRONTIER_GPUS,
    SERVING,
    SERVING_GPUS,
    read_layers,
)
from lab.tables.kernels.fp32_kernels import fraction
from lab.tables.kernels.fused_kernels import GPUS, TABLES, Measured, read_measured
from lab.tables.kernels.prompt_chunks import (
    CHUNK_GPUS,
    CHUNKS,
    MIXED,
    MIXED_GPUS,
    read_chunks,
)
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.kernels.frameworks import Entry, entry_of
from simulators.kernels.intervals import interval_s
from simulators.kernels.levels import profile_of

CHUNK_BAR = 15.0
LAYER_BAR = 25.0
COVERAGE_BAR = (87.0, 94.0)


def checks(reference: Path) -> list[Check]:
    """Return a line per GPU, library and kind of batch, and per table of experts."""
    tables = (CHUNKS, MIXED, FRONTIER, SERVING)
    absent = [table for table in tables if not (reference / table).is_file()]
    found = [Check(f"kernels: {table}", None, note="skipped: no table") for table in absent]
    for gpu in dict.fromkeys((*CHUNK_GPUS, *MIXED_GPUS)):
        for kernel in ("prefill", "decode", "mixed"):
            for rows in read_chunks(reference, gpu, kernel):
                found += _batches(rows.where(rows.held_out))
    for gpu in dict.fromkeys((*FRONTIER_GPUS, *SERVING_GPUS)):
        for rows in read_layers(reference, gpu):
            judged = rows.where(rows.held_out) if gpu in FRONTIER_GPUS else rows
            found.append(_line(judged, f"{gpu} {rows.framework} layers of experts", LAYER_BAR))
    return found


def _batches(rows: Measured) -> list[Check]:
    """Return the lines of one table's chunks, decodes or mixed batches."""
    name = f"{rows.gpu} {rows.framework}"
    if rows.kernel == "prefill":
        return [_line(rows, f"{name} prefix chunks", CHUNK_BAR)]
    if rows.kernel == "decode":
        bar = CHUNK_BAR if rows.gpu in CHUNK_GPUS else None
        return [_line(rows, f"{name} decodes of those tables", bar)]
    mixed = rows.sizes["decodes"] > 0
    return [
        _line(rows.where(mixed), f"{name} mixed batches", CHUNK_BAR),
        _line(rows.where(~mixed), f"{name} prefix chunks as mixed batches", CHUNK_BAR),
    ]


def coverage(reference: Path) -> list[Check]:
    """Return how many rows the 90 % intervals hold that neither fit nor interval has seen."""
    found = []
    low, high = COVERAGE_BAR
    for kernel in (*TABLES, "mixed"):
        inside = [
            _inside(rows.where(fraction(rows.group) >= BANDED), entry)
            for gpu in GPUS
            for rows in read_measured(reference, gpu, kernel) + read_chunks(reference, gpu, kernel)
            for entry in [_entry(rows)]
            if rows.spread == "balanced" and entry is not None and entry.calibrated
            if entry.framework == rows.framework
        ]
        if inside:
            held = np.concatenate(inside)
            value = 100.0 * float(held.mean())
            note = f"rows neither fit nor interval has seen; asked for {low:g} to {high:g} %"
            ok = bool(low <= value <= high)
            found.append(Check(f"{kernel} coverage", value, "%", low, ok, held.size, note))
    return found


def _inside(rows: Measured, entry: Entry) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if not rows.seconds.size:
        return np.zeros(0, np.bool_)
    lo, hi = interval_s(entry.band, predicted_s(rows, load_gpu(rows.gpu), entry))
    return np.asarray((lo <= rows.seconds) & (rows.seconds <= hi))


def _entry(rows: Measured) -> Entry | None:
    board = load_gpu(rows.gpu)
    profile = replace(profile_of(board), framework=rows.framework)
    return entry_of(board, profile, rows.kernel, (rows.dtypes,))


def _line(rows: Measured, name: str, bar: float | None) -> Check:
    entry = _entry(rows)
    assert entry is not None, f"nobody lends {rows.name}"
    errors = 100.0 * (predicted_s(rows, load_gpu(rows.gpu), entry) / rows.seconds - 1.0)
    value = float(np.mean(np.abs(errors)))
    note = f"median {np.median(np.abs(errors)):.1f}, bias {np.mean(errors):+.1f}"
    if entry.framework != rows.framework:
        note += f"; by the numbers of {entry.framework}"
    ok = None if bar is None else bool(value <= bar)
    return Check(f"{name} MAPE", value, "%", bar, ok, errors.size, note)
