"""How far prefill is from measured kernels whose shapes nothing was fitted to.

Tables that the calibrations were fitted to are judged by the half of their shapes that was held
out; any other folder's tables are judged whole. Decode has octaves held out
(`decode_attention.py`). Intervals are judged together with those of `prompt_chunks.py`.
"""

from __future__ import annotations

from pathlib import Path

from lab.claims.judged import entry_errors, entry_holds, is_fitted_to, own_entry
from lab.claims.lines import SHAPES_COVERAGE_BAR, error_line, missing, within
from lab.tables.kernels.fused_kernels import GPUS, read_measured, tables_of
from lab.tables.kernels.prompt_chunks import read_chunks
from lab.tables.rows import BANDED, Rows
from simulators.composition.replica import FRAMEWORKS
from simulators.core.contract import Check

BAR = {"prefill": 12.0, "mla_prefill": 20.0}

PRINTED = ("rtx_pro_6000", "rtx_4090")
"""Boards nothing was asked of."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors of each kernel on each GPU, and coverage."""
    found: list[Check] = []
    for kernel in BAR:
        tables = tables_of(kernel)
        if lines := missing(reference, tables):
            found += lines
            continue
        whole = rows == "all" and not is_fitted_to("fused", reference, tables)
        for gpu in GPUS:
            measured = read_measured(reference, gpu, kernel)
            judged = [part if whole else part.where(part.held_out) for part in measured]
            found += _kernel_checks(gpu, kernel, [part for part in judged if len(part)])
    return found + _coverage(reference)


def _kernel_checks(gpu: str, kernel: str, judged: list[Rows]) -> list[Check]:
    """Return one line per framework."""
    found: list[Check] = []
    for framework in FRAMEWORKS:
        mine = [
            (part, entry_errors(part, entry))
            for part in judged
            if part.framework == framework and (entry := own_entry(part)) is not None
        ]
        if mine:
            limit = None if gpu in PRINTED else BAR[kernel]
            title = f"{gpu} {framework} {kernel}"
            found.append(error_line(f"{title} MAPE", [errors for _, errors in mine], limit))
    return found


def _coverage(reference: Path) -> list[Check]:
    """Return how many rows the 90 % intervals hold that neither fit nor interval has seen."""
    found = []
    for kernel in (*BAR, "mixed"):
        inside = [
            entry_holds(unseen, entry)
            for gpu in GPUS
            for part in read_measured(reference, gpu, kernel) + read_chunks(reference, gpu, kernel)
            if (entry := own_entry(part)) is not None
            and len(unseen := part.where(part.bucket >= BANDED))
        ]
        note = "rows neither fit nor interval has seen"
        found += within(f"{kernel} coverage", inside, note, SHAPES_COVERAGE_BAR)
    return found
