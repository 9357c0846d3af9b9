"""How far attention is from chunks on a prefix and mixed batches, and experts from other tables.

Rows are of shapes nothing was fitted to: of tables the calibrations saw, the held-out half; of
others, all. Where a table is another library's, the line says whose numbers stand in.
"""

from __future__ import annotations

from pathlib import Path

from lab.claims.judged import entry_errors, entry_for
from lab.claims.lines import error_line, missing
from lab.tables.kernels.expert_layers import (
    FRONTIER,
    FRONTIER_GPUS,
    SERVING,
    SERVING_GPUS,
    read_layers,
)
from lab.tables.kernels.prompt_chunks import CHUNK_GPUS, CHUNKS, MIXED, MIXED_GPUS, read_chunks
from lab.tables.rows import Rows
from simulators.core.contract import Check

CHUNK_BAR = 15.0
LAYER_BAR = 25.0


def checks(reference: Path, rows: str) -> list[Check]:  # noqa: ARG001 - the same rows either way
    """Return a line per GPU, library and kind of batch, and per table of experts."""
    found = missing(reference, (CHUNKS, MIXED, FRONTIER, SERVING))
    for gpu in dict.fromkeys((*CHUNK_GPUS, *MIXED_GPUS)):
        for kernel in ("prefill", "decode", "mixed"):
            for part in read_chunks(reference, gpu, kernel):
                found += _batches(part.where(part.held_out))
    for gpu in dict.fromkeys((*FRONTIER_GPUS, *SERVING_GPUS)):
        for part in read_layers(reference, gpu):
            judged = part.where(part.held_out) if gpu in FRONTIER_GPUS else part
            found.append(_line(judged, f"{gpu} {part.framework} layers of experts", LAYER_BAR))
    return found


def _batches(rows: Rows) -> list[Check]:
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


def _line(rows: Rows, name: str, bar: float | None) -> Check:
    entry = entry_for(rows)
    assert entry is not None, f"nobody lends {rows.name}"
    is_own = entry.framework == rows.framework
    note = "" if is_own else f"by the numbers of {entry.framework}"
    return error_line(f"{name} MAPE", [entry_errors(rows, entry)], bar, note)
