"""Entries of a GPU's calibration: one per framework and kernel, judged by rows that no fit saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.fits.driver import Calibration, band_lines, inline
from lab.fits.methods.bands import band_of
from lab.fits.methods.monotone_trees import bend_lines
from lab.tables.rows import BANDED, Floats, Rows, mape
from simulators.core.contract import Check
from simulators.evidence.intervals import WIDEST
from simulators.kernels.entries import Entry
from simulators.kernels.interpolation_grid import SIGNS, STEP, GridTable

SPLIT = "half of the shapes, by a hash of the shape; errors are of the other half"

Leaves = tuple[float, int]


@dataclass(frozen=True)
class Fitted:
    """One kernel's entry, the rows it rests on and its error on shapes nothing saw."""

    name: str
    entry: Entry
    rows: int
    error: float


def plain_entry(rows: Rows, numbers: Mapping[str, float]) -> Entry:
    """Return an entry of a form's numbers alone."""
    return Entry(rows.framework, numbers, None, None, WIDEST, rows.gpu, calibrated=True)


def judged(
    entry: Entry, parts: Sequence[Rows], rows: int, predicted_s: Callable[[Rows, Entry], Floats]
) -> Fitted:
    """Return an entry with its interval and error; a quarter of the unseen rows judges intervals.

    Args:
        entry: as fitted.
        parts: all rows of the kernel, held out or not.
        rows: how many to name in the calibration.
        predicted_s: seconds of rows by an entry.
    """
    unseen = [part.where(part.held_out) for part in parts]
    said = np.concatenate([predicted_s(part, entry) for part in unseen])
    measured = np.concatenate([part.seconds for part in unseen])
    banded = np.concatenate([part.bucket for part in unseen]) < BANDED
    entry = replace(entry, band=band_of(said[banded], measured[banded]))
    return Fitted(parts[0].name, entry, rows, mape(said, measured))


def entries(
    gpu: str,
    done: Sequence[Fitted],
    tables: Mapping[str, str],
    split: str = SPLIT,
    leaves: Leaves | None = None,
) -> Calibration:
    """Return the calibration of one GPU; `leaves` says how finely its trees are written."""
    return Calibration(
        name=gpu,
        tables=tables,
        rows=sum(fitted.rows for fitted in done),
        split=split,
        error=float(np.mean([fitted.error for fitted in done])),
        lines=[line for fitted in done for line in _lines(fitted, leaves)],
        checks=[
            Check(f"{gpu} {fitted.name} MAPE", 100.0 * fitted.error, "%", rows=fitted.rows)
            for fitted in done
        ],
    )


def _lines(fitted: Fitted, leaves: Leaves | None) -> list[str]:
    entry, title = fitted.entry, f'entry."{fitted.name}"'
    lines = [
        "",
        f"[{title}]",
        f"numbers = {inline(entry.numbers)}",
        f"held_out_mape = {fitted.error:.4f}",
        f"band = {{ {', '.join(band_lines(entry.band))} }}",
    ]
    if entry.correction is not None:
        lines += [f"[{title}.bend]", *bend_lines(entry.correction, *(leaves or ()))]
    if entry.grid is not None:
        lines += [f"[{title}.knots]", *grid_lines(entry.grid)]
    return lines


def grid_lines(table: GridTable) -> list[str]:
    """Return what a calibration holds of the grids."""
    lines = []
    for packing, numbers in table.numbers.items():
        row = ", ".join(f"{name} = {value:.4g}" for name, value in numbers.items())
        lines.append(f"numbers.{packing} = {{ {row} }}")
    for where, grid in table.grids.items():
        signs = np.clip(np.rint(grid / STEP).astype(np.int64) + len(SIGNS) // 2, 0, len(SIGNS) - 1)
        none = SIGNS[len(SIGNS) // 2]
        rows = ["".join(SIGNS[sign] for sign in row) for row in signs.tolist()]
        whole, *others = rows  # the first line says how long they are
        text = "|".join([whole, *(row.rstrip(none) for row in others)])
        lines.append(f'grids."{where.name}" = "{text}"')
    return lines
