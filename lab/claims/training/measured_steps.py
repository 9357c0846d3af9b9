"""Training steps of papers, recipes and frameworks' tables, each under constants that never saw it.

Groups of a source, a model and a GPU fall to either half of three splits; a row has a prediction
for each split, under the constants fitted to the other half. The baseline is one MFU for each
source and precision, of the same half; the other tool is Calculon. Sources that were in no fit are
predicted by the constants in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import predict
from lab.fits.training.training_steps import (
    FITTED_SOURCES,
    SPLITS,
    PricedSteps,
    fastest_s,
    halves,
    priced_steps,
)
from simulators.core.calibration import read_calibration
from simulators.training.job import CALIBRATION, constants_of


def steps(reference: Path) -> pl.DataFrame:
    """Return a row for each step and split; `lo` and `hi` are by the constants in use."""
    table = read_calibration(CALIBRATION)
    used = constants_of(table["step"])
    rows = [one for one in priced_steps(reference) if not one.step.is_flagged]
    fitting = [one for one in rows if one.step.source in FITTED_SOURCES]
    splits = [
        dict(zip((one.step.row for one in fitting), halves(fitting, split), strict=True))
        for split in range(SPLITS)
    ]

    def answer(one: PricedSteps) -> list[dict[str, Any]]:
        step, usual_s = one.step, fastest_s(one, used)
        cells = {
            "row": step.row,
            "source": step.source,
            "paper": step.group[0],
            "is_mixture": step.is_mixture,
            "is_fitted": step.source in FITTED_SOURCES,
            "label": f"{step.group[1]} on {step.job.gpu.name}",
            "measured": step.seconds,
            "lo": used.band[0] * usual_s,
            "hi": used.band[1] * usual_s,
            "peer": None if np.isnan(step.peer_s) else step.peer_s,
        }
        if step.row not in splits[0]:
            return [{**cells, "predicted": usual_s, "baseline": None}]
        return [
            {**cells, "predicted": predicted_s, "baseline": baseline_s}
            for predicted_s, baseline_s in _held_out(one, table, fitting, splits)
        ]

    return predict(rows, answer)


def _held_out(
    one: PricedSteps,
    table: Mapping[str, Any],
    fitting: Sequence[PricedSteps],
    splits: Sequence[Mapping[str, bool]],
) -> Iterator[tuple[float, float | None]]:
    """Yield the seconds of a step by the constants, and by the MFU, of each split's other half."""
    for split, in_first in enumerate(splits):
        other = not in_first[one.step.row]
        name = f"split_{split}_{'first' if other else 'second'}"
        mfu = _mfus([r for r in fitting if in_first[r.step.row] == other])
        share = mfu.get((one.step.source, one.step.job.dtype)) or mfu.get((one.step.source, ""))
        yield fastest_s(one, constants_of(table[name])), _ideal_s(one) / share if share else None


def _mfus(rows: Sequence[PricedSteps]) -> Mapping[tuple[str, str], float]:
    """Return the median MFU by source, and by source and precision."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in rows:
        for dtype in ("", one.step.job.dtype):
            found.setdefault((one.step.source, dtype), []).append(_ideal_s(one) / one.step.seconds)
    return {key: float(np.median(values)) for key, values in found.items()}


def _ideal_s(one: PricedSteps) -> float:
    """Return the seconds of a step at the peak of its precision."""
    return one.step.useful_flops / one.step.job.gpu.peak(one.step.job.dtype)
