"""How far layers of experts are from measured ones of models, and octaves of tokens, left out.

Sizes of one model's layer are near copies of each other, so shapes held out at random flatter a
fit: here a fit to all other models foretells each model, and one to all other octaves each octave.
The 90 % interval of a model is that of the others. Skewed rows are foretold by fits to balanced
ones. Notes say how far the shipped numbers are from the half of the shapes held out of their fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.claims.judged import entry_errors, held_by_others, own_entry
from lab.claims.lines import error_line, missing, percent_off, within
from lab.fits.kernels.fused_kernels import (
    FEWEST_MODELS,
    LEFT_OUT_ROWS,
    band_of_groups,
    left_out,
    predicted_s,
)
from lab.tables.kernels.fused_kernels import (
    GPUS,
    models_of,
    octaves_of,
    read_measured,
    tables_of,
)
from lab.tables.rows import Bools, Floats, Rows
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check

FOUR_BITS = ("w4a16", "mxfp4")
"""Formats whose weights are unpacked to 16 bits before they are multiplied."""

KINDS = {"": ("bf16", "fp8"), "narrow ": ("fp8_block", "fp4", "w4a8"), "4-bit ": FOUR_BITS}
"""Formats that share a line, by what it calls them."""

BARS = {"": 15.0, "narrow ": 15.0, "4-bit ": 20.0}
SKEWED_BAR = 25.0

PRINTED = ("rtx_pro_6000",)
"""Boards nothing was asked of."""


@dataclass(frozen=True)
class Foretold:
    """Rows of one kernel that fits did not see, and what these say."""

    errors: Floats  # signed, in percent
    skewed: Floats  # the same, of rows whose tokens prefer some experts
    octaves: Floats  # the same, of balanced rows, an octave of tokens left out at a time
    inside: Bools  # of balanced rows: in the interval of the other models
    shapes: Floats  # errors of the shipped numbers on the shapes held out of their fit


def checks(reference: Path, rows: str) -> list[Check]:  # noqa: ARG001 - the same rows either way
    """Return errors of models and octaves left out by GPU, framework and formats, and coverage."""
    found = missing(reference, tables_of("experts"))
    inside: list[Bools] = []
    for gpu in GPUS:
        parts = read_measured(reference, gpu, "experts")
        for framework in dict.fromkeys(part.framework for part in parts):
            mine = [part for part in parts if part.framework == framework]
            for kind, formats in KINDS.items():
                series = [_foretold(mine, dtype) for dtype in formats]
                done = [one for one in series if one is not None]
                inside += [one.inside for one in done]
                found += _lines(f"{gpu} {framework}", kind, done)
    note = "models left out, by the interval of the others"
    return found + within("experts coverage", inside, note)


def _lines(title: str, kind: str, done: Sequence[Foretold]) -> Iterator[Check]:
    """Yield the errors of one GPU's formats: of models left out, of skewed rows, of octaves."""
    if not done:
        return
    is_judged = title.partition(" ")[0] not in PRINTED
    bar = BARS[kind] if is_judged else None
    shapes = np.abs(np.concatenate([one.shapes for one in done]))
    note = f"shapes held out {shapes.mean():.1f}" if shapes.size else "borrowed as shipped"
    name = f"{title} {kind}experts"
    yield error_line(f"{name} MAPE, model left out", [one.errors for one in done], bar, note)
    skewed = [one.skewed for one in done]
    yield error_line(
        f"{name} MAPE, model left out, skewed", skewed, SKEWED_BAR if is_judged else None
    )
    yield error_line(f"{name} MAPE, octave left out", [one.octaves for one in done], bar)


def _foretold(parts: Sequence[Rows], dtype: str) -> Foretold | None:
    """Return what fits say of a format's rows that they did not see; none of too few models."""
    balanced = [part for part in parts if part.dtype == dtype and not part.variant]
    if not balanced or np.unique(models_of(balanced[0])).size < FEWEST_MODELS:
        return None
    drawn = balanced[0].drawn(LEFT_OUT_ROWS)
    skewed = [p.drawn(LEFT_OUT_ROWS) for p in parts if p.dtype == dtype and p.variant]
    models, errors = [], []
    for aside, entry in left_out(drawn, models_of):
        models.append((predicted_s(aside, load_gpu(aside.gpu), entry), aside.seconds))
        same = [part.where(models_of(part) == models_of(aside)[0]) for part in skewed]
        errors += [entry_errors(part, entry) for part in same]
    shipped, held_out = own_entry(balanced[0]), balanced[0].where(balanced[0].held_out)
    return Foretold(
        errors=np.concatenate([percent_off(*model) for model in models]),
        skewed=np.concatenate([np.zeros(0), *errors]),
        octaves=np.concatenate([entry_errors(*one) for one in left_out(drawn, octaves_of)]),
        inside=np.concatenate(held_by_others(models, band_of_groups)),
        shapes=np.zeros(0) if shipped is None else entry_errors(held_out, shipped),
    )
