"""Fit what moving a KV cache takes: a time for each layer, and the share of a line's rate kept.

A framework's connector prepares the transfer of each layer, and then keeps a share of the line's
rate. Each cache is predicted from the others of its framework. Frameworks that nobody measured have
the geometric means of both numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, hashes
from lab.fits.methods.positive_least_squares import least_log_error
from lab.tables.modern.kv_transfer import TRANSFERS, moved
from lab.tables.rows import Record
from simulators.core.jit import Floats
from simulators.serving.pools.link import CALIBRATION, OTHER, Transfers

FOLDER = CALIBRATION.parent
SPLIT = "each cache predicted from the others of its framework"

LAYER_S, LINES = 1e-5, 1.0
"""What a layer takes and a cache is worth of line rates, to begin with."""

ROUNDS = 20


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield what transfers of all frameworks take."""
    rows = list(moved(reference))
    found = {name: transfers(of(rows, name)) for name in frameworks(rows)}
    found[OTHER] = mean(list(found.values()))
    lines = [
        line
        for name, one in found.items()
        for line in (
            f"\n[transfer.{name}]",
            f"share = {one.share:.4g}",
            f"layer_s = {one.layer_s:.4g}",
        )
    ]
    errors = np.abs(np.exp([log_error(row, others) for row, others in left_out(rows)]) - 1.0)
    yield Calibration(
        name=CALIBRATION.stem,
        about=".",
        tables=hashes(reference, [TRANSFERS]),
        is_listed=False,
        rows=len(rows),
        split=SPLIT,
        held_out_rows=errors.size,
        error=float(errors.mean()),
        lines=lines,
    )


def frameworks(rows: Sequence[Record]) -> list[str]:
    """Return the frameworks of some rows, as they are first met."""
    return list(dict.fromkeys(row.framework for row in rows))


def of(rows: Sequence[Record], framework: str) -> list[Record]:
    """Return the rows of a framework."""
    return [row for row in rows if row.framework == framework]


def left_out(rows: Sequence[Record]) -> Iterator[tuple[Record, Transfers]]:
    """Yield each row with what the others of its framework teach."""
    for row in rows:
        yield row, transfers([one for one in of(rows, row.framework) if one != row])


def log_error(row: Record, known: Transfers) -> float:
    """Return the logarithm of a row's predicted over its measured time."""
    return log((known.layer_s * row.layers + row.line_s / known.share) / row.transfer_s)


def transfers(rows: Sequence[Record]) -> Transfers:
    """Return what transfers take by some rows."""
    layers = np.array([row.layers for row in rows], np.float64)
    line_s, measured_s = (
        np.array([getattr(row, n) for row in rows]) for n in ("line_s", "transfer_s")
    )
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


def mean(known: Sequence[Transfers]) -> Transfers:
    """Return the geometric means of both numbers."""

    def middle(numbers: Sequence[float]) -> float:
        logs: Floats = np.log(np.array(numbers))
        return float(np.exp(logs.mean()))

    return Transfers(
        share=middle([one.share for one in known]), layer_s=middle([one.layer_s for one in known])
    )
