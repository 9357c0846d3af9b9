"""Fit pointwise chains to times inside an engine: `python -m lab.fits engine_chains`.

On half of all sizes; the other half judges, and half of it gives the interval. Each of these GPUs
gets a file of auxiliary kernels of its own; `auxiliary_kernels` writes those of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, hashes
from lab.fits.methods.entries import Fitted, entries, judged, plain_entry
from lab.fits.methods.least_squares import fit_named
from lab.tables.kernels.engine_chains import read_chain_rows
from lab.tables.kernels.engine_products import GPUS, LAYERS
from lab.tables.rows import Rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.lookup import CALIBRATIONS
from simulators.kernels.families.pointwise import UNMEASURED, chain_seconds

FOLDER = CALIBRATIONS / "side"

SPLIT = "half of the sizes, by a hash of the size; errors are of the other half"

BOUNDS = {
    "start_s": (5e-7, 2e-5), "l2": (1.0, 64.0), "share": (0.02, 1.0), "rest": (0.001, 0.5),
    "bandwidth": (0.3, 1.0),
}  # fmt: skip
"""What the numbers stay between."""

RIDGE = 0.01


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the table."""
    tables = hashes(reference, [LAYERS])
    for name in chosen(only, GPUS):
        done = [fit_chain(part, load_gpu(name)) for part in read_chain_rows(reference, name)]
        yield entries(name, done, tables, SPLIT)


def fit_chain(rows: Rows, gpu: Gpu) -> Fitted:
    """Return the entry of one kernel."""
    seen, names = rows.where(~rows.held_out), tuple(UNMEASURED)
    operator = seen.operator
    low, high = (np.log([BOUNDS[name][end] for name in names]) for end in (0, 1))
    numbers = fit_named(
        lambda numbers: chain_seconds(operator, gpu, numbers),
        names,
        np.log(list(UNMEASURED.values())),
        seen.seconds,
        low=low,
        high=high,
        ridge=RIDGE,
    )
    return judged(
        plain_entry(rows, numbers),
        [rows],
        len(seen),
        lambda part, entry: chain_seconds(part.operator, gpu, entry.numbers),
    )
