"""Entries of a GPU's calibration: one per framework, kernel and formats, with held-out errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, rounded
from lab.fits.methods.held_out import band_of
from lab.fits.methods.monotone_trees import tree_table
from lab.tables.rows import BANDED, Floats, Rows, mape
from simulators.core.checks import Check
from simulators.evidence.intervals import WIDEST
from simulators.kernels.corrections import SIGNS, STEP, GridTable
from simulators.kernels.families.family import Entry

SPLIT = "half of the shapes, by a hash of the shape; errors are of the other half"


@dataclass(frozen=True)
class FittedEntry:
    """The fitted entry of a kernel, the number of rows, and errors on held-out shapes."""

    name: str
    entry: Entry
    rows: int
    error: float


def plain_entry(rows: Rows, numbers: Mapping[str, float]) -> Entry:
    """Return an entry of a form's numbers alone."""
    return Entry(rows.framework, numbers, None, None, WIDEST, rows.gpu, calibrated=True)


def judged(
    entry: Entry, parts: Sequence[Rows], rows: int, predicted_s: Callable[[Rows, Entry], Floats]
) -> FittedEntry:
    """Return an entry with its interval, from three quarters of the held-out rows, and its error.

    Args:
        entry: as fitted.
        parts: all rows of the kernel, held out or not.
        rows: their number, as the calibration states it.
        predicted_s: predicts rows by an entry.
    """
    unseen = [part.where(part.held_out) for part in parts]
    predicted = np.concatenate([predicted_s(part, entry) for part in unseen])
    measured = np.concatenate([part.seconds for part in unseen])
    banded = np.concatenate([part.bucket for part in unseen]) < BANDED
    entry = replace(entry, band=band_of(predicted[banded], measured[banded]))
    return FittedEntry(parts[0].name, entry, rows, mape(predicted, measured))


def entries(
    gpu: str,
    done: Sequence[FittedEntry],
    tables: Sequence[str],
    split: str = SPLIT,
    **trees: Any,
) -> Calibration:
    """Return the calibration of one GPU; `trees` are options of `tree_table`."""
    return Calibration(
        name=gpu,
        content={"entry": {fitted.name: _table(fitted, trees) for fitted in done}},
        style=".6g",
        tables=tables,
        rows=sum(fitted.rows for fitted in done),
        split=split,
        errors=[fitted.error for fitted in done],
        checks=[
            Check(f"{gpu} {fitted.name} MAPE", 100.0 * fitted.error, "%", rows=fitted.rows)
            for fitted in done
        ],
    )


def _table(fitted: FittedEntry, trees: Mapping[str, Any]) -> dict[str, Any]:
    entry = fitted.entry
    table: dict[str, Any] = {
        "numbers": rounded(entry.numbers, ".5g"),
        "held_out_mape": round(fitted.error, 4),
        "band": rounded(vars(entry.band), ".4f"),
    }
    if entry.correction is not None:
        table["correction"] = tree_table(entry.correction, **trees)
    if entry.grid is not None:
        table["grid"] = grid_table(entry.grid)
    return table


def grid_table(table: GridTable) -> dict[str, Any]:
    """Return grids as a calibration stores them: a character per knot, rows divided by bars."""
    middle = len(SIGNS) // 2
    grids = {}
    for where, grid in table.grids.items():
        signs = np.clip(np.rint(grid / STEP).astype(np.int64) + middle, 0, len(SIGNS) - 1)
        first, *others = ["".join(SIGNS[sign] for sign in row) for row in signs.tolist()]
        grids[where.name] = "|".join([first, *(row.rstrip(SIGNS[middle]) for row in others)])
    return {"numbers": rounded(table.numbers, ".4g"), "grids": grids}
