"""How far decode attention is off in octaves that fits leave out, and on boards.

Of each kernel every third octave of pairs and of tokens is foretold by fits to the others.
Intervals are judged by turns: each turn's rows by the residuals of the other turns. A board that
is left out is priced by what it would borrow, as are boards no calibration was shipped for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.claims.judged import (
    band_of_turns,
    entry_errors,
    entry_for,
    held_by_others,
    own_entry,
)
from lab.claims.lines import error_line, missing, percent_off, within
from lab.fits.kernels.decode_attention import octaves_left_out
from lab.tables.kernels.fused_kernels import GPUS, read_measured, tables_of
from lab.tables.rows import Bools
from simulators.composition.replica import FRAMEWORKS
from simulators.core.contract import Check

DECODES = ("decode", "mla_decode")
LATENT = ("mla_prefill", "mla_decode")
OCTAVE_BAR = {"decode": 8.0, "mla_decode": 15.0}
BOARD_BAR = 15.0
"""Asked of latent attention on every board, and of other decode within an architecture."""

NEAR = "h200_sxm"

UNFITTED = ("b300_sxm",)
"""Boards in the tables that borrow all they know."""


def checks(reference: Path, _rows: str) -> list[Check]:
    """Return errors and coverage of octaves left out, then those of boards left out."""
    found: list[Check] = []
    for kernel in dict.fromkeys((*DECODES, *LATENT)):
        if lines := missing(reference, tables_of(kernel)):
            found += lines
            continue
        if kernel in DECODES:
            found += _octaves(reference, kernel)
        found += _boards(reference, kernel)
    return found


def _octaves(reference: Path, kernel: str) -> Iterator[Check]:
    """Yield the error of each framework on each board, and the coverage of all of them."""
    inside: list[Bools] = []
    for gpu in GPUS:
        parts = [p for p in read_measured(reference, gpu, kernel) if own_entry(p) is not None]
        for framework in FRAMEWORKS:
            turns = [octaves_left_out(part) for part in parts if part.framework == framework]
            errors = [percent_off(*each) for part in turns for each in part]
            if errors:
                name = f"{gpu} {framework} {kernel} MAPE, octaves left out"
                yield error_line(name, errors, OCTAVE_BAR[kernel])
            inside += [held for part in turns for held in held_by_others(part, band_of_turns)]
    note = "each turn's rows in intervals of the other turns"
    yield from within(f"{kernel} coverage, octaves left out", inside, note)


def _boards(reference: Path, kernel: str) -> Iterator[Check]:
    """Yield the error on each board by what it would borrow; intervals: `borrowed_kernels.py`."""
    for gpu in (*GPUS, *UNFITTED):
        for framework in FRAMEWORKS:
            mine = [
                (part, entry)
                for part in read_measured(reference, gpu, kernel)
                if part.framework == framework and (entry := entry_for(part, "zero_shot"))
            ]
            if mine:
                errors = [entry_errors(part, entry) for part, entry in mine]
                name = f"{gpu} {framework} {kernel} MAPE, board left out"
                limit = BOARD_BAR if kernel in LATENT or gpu == NEAR else None
                yield error_line(name, errors, limit, f"by {mine[0][1].board}")
