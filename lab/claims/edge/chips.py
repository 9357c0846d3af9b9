"""Models of Qualcomm AI Hub on a chip that is left out, ten of them measured.

All programs of ten models are measured (a model is several: by runtime and precision), those of the
other models are judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.methods.few_shot import adapt
from lab.fits.methods.programs import learn_programs, one_hot
from lab.tables.edge.programs import Matrix, ai_hub

MODELS, DRAWS = 10, 4


def programs(reference: Path) -> pl.DataFrame:
    """Return predicted and measured seconds of the programs that were not measured."""
    table = ai_hub(reference)
    return together(frame for chip in range(len(table.chips)) for frame in _chip(table, chip))


def _chip(table: Matrix, chip: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of each draw of a chip."""
    others = np.delete(table.log, chip, 0)
    prior = learn_programs(others, np.ones(len(table.chips) - 1), _labels(table))
    known = np.flatnonzero(~np.isnan(table.log[chip]) & ~np.isnan(others).all(axis=0))
    models = np.array([program[0] for program in table.programs])
    features = one_hot(range(len(table.programs)), len(table.programs))
    for draw in range(DRAWS):
        generator = np.random.default_rng(np.random.SeedSequence(draw))
        drawn = generator.choice(np.unique(models[known]), MODELS, replace=False)
        samples = known[np.isin(models[known], drawn)]
        rest = np.setdiff1d(known, samples)
        weights = adapt(prior, features[samples], np.exp(table.log[chip, samples]))
        predicted, low, high = weights.seconds(features[rest])
        measured = np.exp(table.log[chip, rest])
        yield columns(
            predicted=predicted,
            measured=measured,
            lo=low,
            hi=high,
            chip=table.chips[chip],
            draw=draw,
        )


def _labels(table: Matrix) -> list[list[str]]:
    """Return what programs share: runtime and precision, each of them, and the model."""
    both = [f"{runtime} {precision}" for _, _, precision, runtime in table.programs]
    model, _, precision, runtime = (list(names) for names in zip(*table.programs, strict=True))
    return [both, runtime, precision, model]
