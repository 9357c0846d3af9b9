"""Static batches of an older engine against measured ones, their groups left out of its fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import ratio_line
from lab.fits.engine_columns import numbers_of
from lab.fits.engines import static_columns
from lab.fits.left_out import runtime_without
from lab.tables.static_batches import SESSION, STATIC, static_rows
from simulators.catalog.model import load_model
from simulators.core.contract import Check

NEEDS = (STATIC,)
LIMITS = {"dense": 11.0}
"""Of mean errors in percent."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of dense models and of mixtures."""
    rows = static_rows(reference)
    columns, replicas = static_columns(rows)
    runtimes = [runtime_without(SESSION, row.group) for row in rows]
    numbers = [numbers_of(*one) for one in zip(runtimes, replicas, strict=True)]
    predicted_s = np.sum(columns * np.stack(numbers), axis=-1)
    ratio = np.array([row.measured_s for row in rows]) / predicted_s
    dense = np.array([load_model(row.model).experts == 0 for row in rows])
    for kind, which in (("dense", dense), ("experts", ~dense)):
        yield ratio_line(f"static batches, {kind}", ratio[which], LIMITS.get(kind))
