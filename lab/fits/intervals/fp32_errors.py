"""Fit how far fp32 operators of a board lie from predictions, were it new: `lab.fits fp32_errors`.

Each calibrated board is left out in turn of what boards borrow from each other. Its layers' shapes
are predicted from its data sheet and the others, and from ten rows besides, drawn several times,
the shapes of which leave the test. Errors are logarithms of measured over predicted, kept as
quantiles at the middles of twentieths; those by ten rows are counted in the board's own unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes
from lab.fits.methods.fp32_forms import cross_validated_s, fit_few
from lab.tables.kernels.fp32_kernels import TABLES, read_rows
from lab.tables.rows import Floats, Rows
from planning.calibrate.kernels import unit_of
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.boards import boards, identity_of
from simulators.evidence.fp32_bands import CALIBRATION
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import Profile

FOLDER = CALIBRATION.parent
SPLIT = "each board in turn: from its data sheet, and from ten rows with the others' shapes left"

FEW_ROWS, SEEDS = 10, 4
"""Of the few-shot exercise every board goes through as if it were new."""

PARTS = 20
"""Quantiles that stand for the errors of a class on a board."""


@dataclass(frozen=True)
class Exercise:
    """A few rows of a new board, and the others as these foretell them."""

    predicted_s: Floats
    measured_s: Floats
    missed: Floats  # of the few, each left out in its turn: log of measured over predicted


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the errors of every calibrated board, by class of operators."""
    names = {board.name for board in boards()}
    parts = [part.layers for part in read_rows(reference)[0] if part.gpu in names]
    done = {(part.gpu, part.kernel): _exercises(part) for part in parts}
    units = {key: float(np.exp(np.mean(np.log(_units(few))))) for key, few in done.items()}
    lines, off = [], []
    for part in parts:
        key = part.gpu, part.kernel
        others = [unit for (gpu, label), unit in units.items() if label == key[1] and gpu != key[0]]
        sheet = np.log(part.seconds / _sheet_seconds(part))
        rows = [
            np.log(one.measured_s / one.predicted_s) / unit_of(one.missed, others)
            for one in done[key]
        ]
        lines += [
            "",
            f"[board.{part.gpu}.{part.kernel}]",
            f"unit = {units[key]:.4g}",
            *_quantile_lines({"sheet": sheet, "rows": np.concatenate(rows)}),
        ]
        off.append(sheet)
    missed = np.concatenate(off)
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, TABLES),
        rows=missed.size,
        split=SPLIT,
        held_out=np.expm1(np.abs(missed)),
        lines=lines,
    )


def few_shot_exercise(rows: Rows, gpu: Gpu, blank: Profile, count: int, seed: int) -> Exercise:
    """Return predicted and measured seconds of rows of other shapes than the `count` drawn."""
    draw = np.random.default_rng(np.random.SeedSequence([seed, count]))
    chosen = draw.choice(len(rows), size=min(count, len(rows) // 2), replace=False)
    exact = np.stack([rows.sizes[name] for name in rows.sizes if name != "batch"], axis=1)
    taken = {tuple(row) for row in exact[chosen]}
    rest = rows.where(np.array([tuple(row) not in taken for row in exact], bool))
    few = rows.where(chosen)
    predicted_s = call_seconds(rest.operator, gpu, fit_few(few, gpu, blank))
    return Exercise(predicted_s, rest.seconds, missed_by(few, gpu, blank))


def missed_by(few: Rows, gpu: Gpu, blank: Profile) -> Floats:
    """Return how far each of a few rows is off by the others, as logarithms; known ones alone."""
    blind_s = cross_validated_s(few, gpu, blank, fit_few, min(len(few), FEW_ROWS))
    missed = np.log(few.seconds / blind_s)
    return missed[np.isfinite(missed)]


def _exercises(rows: Rows) -> list[Exercise]:
    gpu = load_gpu(rows.gpu)
    blank = zero_shot_profile(identity_of(gpu))
    return [few_shot_exercise(rows, gpu, blank, FEW_ROWS, seed) for seed in range(SEEDS)]


def _units(few: Sequence[Exercise]) -> list[float]:
    return [float(np.sqrt(np.mean(one.missed**2))) for one in few if one.missed.any()]


def _sheet_seconds(rows: Rows) -> Floats:
    gpu = load_gpu(rows.gpu)
    return call_seconds(rows.operator, gpu, zero_shot_profile(identity_of(gpu)))


def _quantile_lines(errors: Mapping[str, Floats]) -> Iterator[str]:
    middles = (np.arange(PARTS) + 0.5) / PARTS
    for name, off in errors.items():
        yield f"{name} = [{', '.join(f'{x:.3g}' for x in np.quantile(off, middles))}]"
