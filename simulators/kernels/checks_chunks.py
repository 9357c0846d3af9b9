"""How far attention is from chunks on a prefix and mixed batches, and experts from other tables.

Rows are of shapes nothing was fitted to: of tables the calibrations saw, the held-out half; of
others, all. Where a table is another library's, the line says whose numbers stand in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.kernels.bands import interval_s
from simulators.kernels.fit_fused import BANDED, predicted_s
from simulators.kernels.frameworks import Entry, entry_of
from simulators.kernels.levels import profile_of
from simulators.kernels.measured_chunks import (
    CHUNK_GPUS,
    CHUNKS,
    MIXED,
    MIXED_GPUS,
    read_chunks,
    read_points,
)
from simulators.kernels.measured_experts import (
    FRONTIER,
    FRONTIER_GPUS,
    SERVING,
    SERVING_GPUS,
    read_layers,
)
from simulators.kernels.measured_fused import GPUS, TABLES, Measured, read_measured
from simulators.kernels.measurements import fraction

CHUNK_BAR = 15.0
LAYER_BAR = 25.0
COVERAGE_BAR = (87.0, 94.0)

TITLE = {"prefill": "prefix chunks", "decode": "decodes beside them", "mixed": "mixed batches"}


def checks(reference: Path) -> list[Check]:
    """Return a line per GPU, library and kind of batch, and per table of experts."""
    tables = (CHUNKS, MIXED, FRONTIER, SERVING)
    absent = [table for table in tables if not (reference / table).is_file()]
    found = [Check(f"kernels: {table}", None, note="skipped: no table") for table in absent]
    for gpu in dict.fromkeys((*CHUNK_GPUS, *MIXED_GPUS)):
        for kernel, title in TITLE.items():
            for rows in read_chunks(reference, gpu, kernel):
                if kernel == "mixed":
                    rows = rows.where(rows.sizes["decodes"] > 0)
                held_out = rows.where(rows.held_out)
                found.append(_line(held_out, f"{gpu} {rows.framework} {title}", CHUNK_BAR))
    found += [
        _line(rows, "a100_sxm 7B decode points", CHUNK_BAR) for rows in read_points(reference)
    ]
    for gpu in dict.fromkeys((*FRONTIER_GPUS, *SERVING_GPUS)):
        for rows in read_layers(reference, gpu):
            judged = rows.where(rows.held_out) if gpu in FRONTIER_GPUS else rows
            found.append(_line(judged, f"{gpu} {rows.framework} layers of experts", LAYER_BAR))
    return found


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
            if rows.spread == "balanced" and entry.calibrated and entry.framework == rows.framework
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


def _entry(rows: Measured) -> Entry:
    board = load_gpu(rows.gpu)
    profile = replace(profile_of(board), framework=rows.framework)
    entry = entry_of(board, profile, rows.kernel, (rows.dtypes,))
    assert entry is not None, f"nobody lends {rows.name}"
    return entry


def _line(rows: Measured, name: str, bar: float) -> Check:
    entry = _entry(rows)
    errors = 100.0 * (predicted_s(rows, load_gpu(rows.gpu), entry) / rows.seconds - 1.0)
    value = float(np.mean(np.abs(errors)))
    note = f"median {np.median(np.abs(errors)):.1f}, bias {np.mean(errors):+.1f}"
    if entry.framework != rows.framework:
        note += f"; by the numbers of {entry.framework}"
    return Check(f"{name} MAPE", value, "%", bar, bool(value <= bar), errors.size, note)
