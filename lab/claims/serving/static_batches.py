"""Static batches of an older engine against measured ones, their groups left out of its fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, ratio_line
from lab.fits.engine_columns import numbers_of
from lab.fits.engines import static_columns
from lab.fits.left_out import runtime_without
from lab.tables.static_batches import SESSION, STATIC, StaticBatch, static_rows
from simulators.catalog.model import load_model
from simulators.core.contract import Check

NEEDS = (STATIC,)
LIMITS = {"dense": 11.0}
"""Of mean errors in percent."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of dense models and of mixtures."""
    found = answered("static batches", static_rows(reference), _predicted_s)
    yield from found.lines
    ratio = np.array([row.measured_s for row in found.rows]) / np.array(found.answers)
    dense = np.array([load_model(row.model).experts == 0 for row in found.rows], bool)
    for kind, which in (("dense", dense), ("experts", ~dense)):
        yield ratio_line(f"static batches, {kind}", ratio[which], LIMITS.get(kind))


def _predicted_s(row: StaticBatch) -> float:
    """Return our time of a batch, its group left out of the fit."""
    columns, [replica] = static_columns([row])
    numbers = numbers_of(runtime_without(SESSION, row.group), replica)
    return float(np.sum(columns[0] * numbers))
