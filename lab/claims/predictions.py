"""Frames of predicted and measured rows, as claims evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl

from simulators.core.errors import Infeasible, UserError

Row = TypeVar("Row")
Cells = Mapping[str, Any]
EMPTY = {"predicted": pl.Float64, "measured": pl.Float64}


def predict(
    rows: Iterable[Row],
    answer: Callable[[Row], Cells | Sequence[Cells]],
    labels: Callable[[Row], Cells] = lambda _row: {},
) -> pl.DataFrame:
    """Return a frame of predictions; the column `skipped` holds the reason for a missing one.

    Args:
        rows: measured rows.
        answer: function to the cells of a row (`predicted`, `measured` ...), or of several rows.
        labels: function to further cells that name a row.
    """
    records: list[Cells] = []
    for row in rows:
        try:
            cells = answer(row)
        except (Infeasible, UserError) as error:
            cells = {"skipped": reason(error)}
        several = [cells] if isinstance(cells, Mapping) else cells
        records += [{**labels(row), **one} for one in several]
    return (
        pl.DataFrame(records, infer_schema_length=None) if records else pl.DataFrame(schema=EMPTY)
    )


def reason(error: Infeasible | UserError) -> str:
    """Return the reason for a missing prediction, in one line that similar rows share.

    >>> reason(Infeasible("weights_exceed_hbm", "needs 171 GB, has 80 GB"))
    'weights_exceed_hbm'
    """
    return error.reason if isinstance(error, Infeasible) else str(error).partition("\n")[0]


def columns(**cells: Any) -> pl.DataFrame:
    """Return a frame of arrays of equal length; single values are repeated."""
    length = max((len(c) for c in cells.values() if isinstance(c, np.ndarray | list)), default=0)
    return pl.DataFrame(
        {
            name: cell if isinstance(cell, np.ndarray | list) else [cell] * length
            for name, cell in cells.items()
        }
    )


def together(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of several frames; columns that a frame lacks are null."""
    found = [frame for frame in frames if frame.height]
    return pl.concat(found, how="diagonal_relaxed") if found else pl.DataFrame(schema=EMPTY)
