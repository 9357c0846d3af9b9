"""Fit the errors of fp32 operators on a new GPU, from calibrated GPUs left out in turn.

A GPU's layer shapes are predicted from its data sheet and the other GPUs, and also with ten of its
rows, drawn four times, whose shapes leave the test. Stored are quantiles of log(measured /
predicted) at the middles of twentieths; those with ten rows are in units of the GPU's own errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, rounded
from lab.fits.methods.fp32_forms import cross_validated_s, fit_few
from lab.fits.methods.held_out import quantile
from lab.tables.fp32 import TABLES, read_rows
from lab.tables.rows import Floats, Rows
from planning.calibrate.kernels import unit_of
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.default_rates import FP32_ERRORS, identity_of, measured_gpus
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import Profile

FOLDER = FP32_ERRORS.parent
FEW_ROWS, SEEDS = 10, 4
MIDDLES = (np.arange(20) + 0.5) / 20


@dataclass(frozen=True)
class Exercise:
    """A GPU calibrated with a few rows, and predictions of its other rows."""

    predicted_s: Floats
    measured_s: Floats
    missed: Floats  # log(measured / predicted) of the few rows, each left out in turn


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the errors of every calibrated GPU, by operator class."""
    names = {one.name for one in measured_gpus()}
    parts = [part.layers for part in read_rows(reference)[0] if part.gpu in names]
    exercises, units, sheet_errors = {}, {}, {}
    for part in parts:
        gpu, key = load_gpu(part.gpu), (part.gpu, part.kernel)
        blank = zero_shot_profile(identity_of(gpu))
        sheet_errors[key] = np.log(part.seconds / call_seconds(part.operator, gpu, blank))
        exercises[key] = [few_shot_exercise(part, gpu, blank, FEW_ROWS, s) for s in range(SEEDS)]
        scales = [np.mean(one.missed**2) for one in exercises[key] if one.missed.any()]
        units[key] = float(np.exp(np.mean(np.log(np.sqrt(scales)))))
    content: dict[str, dict[str, Any]] = {}
    for (gpu_name, label), some in exercises.items():
        others = [unit for (g, kind), unit in units.items() if kind == label and g != gpu_name]
        with_rows = [
            np.log(one.measured_s / one.predicted_s) / unit_of(one.missed, others) for one in some
        ]
        content.setdefault(gpu_name, {})[label] = {
            "unit": units[gpu_name, label],
            "sheet": rounded(quantile(sheet_errors[gpu_name, label], MIDDLES.tolist()), ".3g"),
            "rows": rounded(quantile(np.concatenate(with_rows), MIDDLES.tolist()), ".3g"),
        }
    errors = np.concatenate(list(sheet_errors.values()))
    yield Calibration(
        name=FP32_ERRORS.stem,
        content={"gpu": content},
        tables=TABLES,
        rows=errors.size,
        split=("each GPU in turn: from its data sheet, and from ten rows, their shapes left out"),
        errors=np.expm1(np.abs(errors)),
    )


def few_shot_exercise(rows: Rows, gpu: Gpu, blank: Profile, count: int, seed: int) -> Exercise:
    """Return predicted and measured seconds of rows of other shapes than the `count` drawn."""
    draw = np.random.default_rng(np.random.SeedSequence([seed, count]))
    drawn = draw.choice(len(rows), size=min(count, len(rows) // 2), replace=False)
    exact = np.stack([rows.sizes[name] for name in rows.sizes if name != "batch"], axis=1)
    taken = {tuple(row) for row in exact[drawn]}
    rest = rows.where(np.array([tuple(row) not in taken for row in exact], bool))
    few = rows.where(drawn)
    predicted_s = call_seconds(rest.operator, gpu, fit_few(few, gpu, blank))
    blind_s = cross_validated_s(few, gpu, blank, fit_few, min(len(few), FEW_ROWS))
    missed = np.log(few.seconds / blind_s)
    return Exercise(predicted_s, rest.seconds, missed[np.isfinite(missed)])
