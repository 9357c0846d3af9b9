"""Fit KV transfers between pools: seconds per layer, and the share of line rate sustained.

Both numbers are of a framework's connector. Frameworks without measurements have the geometric
means of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.held_out import leave_one_out
from lab.fits.methods.positive_least_squares import least_log_error
from lab.tables.collectives import TRANSFERS, moved
from lab.tables.rows import Record
from simulators.serving.engine.kv_transfer import CALIBRATION, OTHER, Transfers

FOLDER = CALIBRATION.parent
LAYER_S, LINES = 1e-5, 1.0
"""Scales of the two numbers: seconds per layer, and times the cache takes at line rate."""

ROUNDS = 20


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the transfers of all frameworks."""
    rows = list(moved(reference))
    found = {name: transfers(of(rows, name)) for name in frameworks(rows)}
    numbers = {name: {"share": one.share, "layer_s": one.layer_s} for name, one in found.items()}
    numbers[OTHER] = {
        field: float(np.exp(np.mean(np.log([one[field] for one in numbers.values()]))))
        for field in ("share", "layer_s")
    }
    yield Calibration(
        name=CALIBRATION.stem,
        content={"transfer": numbers},
        tables=[TRANSFERS],
        rows=len(rows),
        split="each cache predicted from the others of its framework",
        errors=np.expm1([log_error(row, others) for row, others in left_out(rows)]),
    )


def frameworks(rows: Sequence[Record]) -> list[str]:
    """Return the frameworks of some rows, in the order of the rows."""
    return list(dict.fromkeys(row.framework for row in rows))


def of(rows: Sequence[Record], framework: str) -> list[Record]:
    """Return the rows of a framework."""
    return [row for row in rows if row.framework == framework]


def left_out(rows: Sequence[Record]) -> Iterator[tuple[Record, Transfers]]:
    """Yield each row with the numbers fitted to the other rows of its framework."""
    for name in frameworks(rows):
        for [row], known in leave_one_out(of(rows, name), id, transfers):
            yield row, known


def log_error(row: Record, known: Transfers) -> float:
    """Return log(predicted / measured) of a row."""
    return log((known.layer_s * row.layers + row.line_s / known.share) / row.transfer_s)


def transfers(rows: Sequence[Record]) -> Transfers:
    """Return the numbers fitted to some rows."""
    layers, line_s, measured_s = np.array(
        [(row.layers, row.line_s, row.transfer_s) for row in rows], np.float64
    ).T
    layer_s, lines = least_log_error(
        np.stack([layers, line_s], axis=-1),
        np.zeros(len(rows)),
        measured_s,
        np.ones(len(rows)),
        scale=np.array([LAYER_S, LINES]),
        soften=np.ones_like,
        rounds=ROUNDS,
    ).tolist()
    return Transfers(share=1.0 / lines, layer_s=layer_s)
