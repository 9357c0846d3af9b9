"""fp32 calls at three levels of information, which are never mixed.

Full: GPUs with a calibration, on held-out shapes. Few rows: GPUs left out of every fit, with ten
rows per operator whose shapes then leave the test, in four draws. Data sheet: every GPU as if only
its data sheet were known; the baseline is the roofline. Errors are of isolated calls, host dispatch
included, as the tables hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lab.claims.kernels.frames import priced
from lab.claims.predictions import columns, together
from lab.fits.intervals.fp32_errors import FEW_ROWS, SEEDS, few_shot_exercise
from lab.tables.kernels.fp32_kernels import read_rows
from lab.tables.rows import Rows
from planning.calibrate.kernels import band_by_rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.default_rates import identity_of, measured_gpus
from simulators.evidence.intervals import interval_s
from simulators.kernels.levels import profile_of, zero_shot_profile
from simulators.kernels.price import price_call, roofline_s

FAMILY_OF = {
    "linear": "linear",
    "bmm": "bmm",
    "conv": "conv",
    "softmax": "softmax + norm",
    "layer_norm": "softmax + norm",
    "binary": "elementwise",
    "unary": "elementwise",
    "pow": "elementwise",
    "powu": "elementwise",
}
"""Classes of operators that are reported together."""


def full(reference: Path) -> pl.DataFrame:
    """Return held-out shapes of GPUs with a calibration."""
    frames = []
    for part in read_rows(reference)[0]:
        gpu = load_gpu(part.gpu)
        if profile_of(gpu).level == "full" and part.held_out.any():
            rows = part.where(part.held_out)
            answer = price_call(rows.operator, gpu, profile_of(gpu))
            frames.append(priced(rows, answer, family=FAMILY_OF[part.kernel]))
    return together(frames)


def data_sheet(reference: Path) -> pl.DataFrame:
    """Return all shapes of every GPU as if only its data sheet were known."""
    frames = []
    for part in read_rows(reference)[0]:
        gpu, rows = load_gpu(part.gpu), part.layers
        answer = price_call(rows.operator, gpu, zero_shot_profile(identity_of(gpu)))
        roof_s = roofline_s(rows.operator, gpu)
        frames.append(priced(rows, answer, family=FAMILY_OF[part.kernel], baseline=roof_s))
    return together(frames)


def few_rows(reference: Path) -> pl.DataFrame:
    """Return the other shapes of every GPU, given ten rows of each operator, by draw."""
    return together(
        frame
        for part in read_rows(reference)[0]
        if FAMILY_OF[part.kernel] != "conv"
        for frame in _draws(part.layers)
    )


def _draws(rows: Rows) -> Iterator[pl.DataFrame]:
    gpu = load_gpu(rows.gpu)
    blank = zero_shot_profile(identity_of(gpu))
    others = [one.name for one in measured_gpus() if one.name != gpu.name]
    for draw in range(SEEDS):
        one = few_shot_exercise(rows, gpu, blank, FEW_ROWS, draw)
        lo_s, hi_s = interval_s(band_by_rows(rows.kernel, one.missed, others), one.predicted_s)
        yield columns(
            predicted=one.predicted_s,
            measured=one.measured_s,
            lo=lo_s,
            hi=hi_s,
            gpu=rows.gpu,
            family=FAMILY_OF[rows.kernel],
            draw=draw,
        )
