"""Decode attention and layers of experts: octaves and models left out.

Shapes of one model's layer are near copies of each other, so shapes held out at random flatter a
fit: models and octaves are left out whole. Intervals are those of the other turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.kernels.frames import band_of_turns, by_entry, in_turns, own_entry
from lab.claims.predictions import together
from lab.fits.kernels.decode_attention import octaves_left_out
from lab.fits.kernels.fused_kernels import (
    FEWEST_MODELS,
    LEFT_OUT_ROWS,
    band_of_groups,
    left_out,
    predicted_s,
)
from lab.tables.kernels.fused_kernels import GPUS, models_of, octaves_of, read_measured
from lab.tables.rows import Rows
from simulators.catalog.gpu import load_gpu

FORMATS = {
    "": ("bf16", "fp8"),
    "narrow ": ("fp8_block", "fp4", "w4a8"),
    "4-bit ": ("w4a16", "mxfp4"),
}
"""Formats of experts that share a line; weights of the last are unpacked to 16 bits."""


def octaves(reference: Path) -> pl.DataFrame:
    """Return decodes, every third octave of pairs and of tokens left out in turn."""
    return together(
        in_turns(
            octaves_left_out(part),
            band_of_turns,
            gpu=gpu,
            framework=part.framework,
            kernel=kernel,
        )
        for kernel in ("decode", "mla_decode")
        for gpu in GPUS
        for part in read_measured(reference, gpu, kernel)
        if own_entry(part) is not None
    )


def experts(reference: Path) -> pl.DataFrame:
    """Return layers of experts: models (also with skewed routing) or octaves of tokens left out."""
    return together(_experts(reference))


def _experts(reference: Path) -> Iterator[pl.DataFrame]:
    for gpu in GPUS:
        parts = read_measured(reference, gpu, "experts")
        for framework in dict.fromkeys(part.framework for part in parts):
            mine = [part for part in parts if part.framework == framework]
            for kind, formats in FORMATS.items():
                for dtype in formats:
                    for split, frame in _left_out(mine, dtype):
                        labels = {"gpu": gpu, "framework": framework, "kind": kind, "split": split}
                        yield frame.with_columns(**{n: pl.lit(v) for n, v in labels.items()})


def _left_out(parts: Sequence[Rows], dtype: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the rows of a format that fits did not see, by what was left out of them."""
    balanced = [part for part in parts if part.dtype == dtype and not part.variant]
    if not balanced or np.unique(models_of(balanced[0])).size < FEWEST_MODELS:
        return
    drawn = balanced[0].drawn(LEFT_OUT_ROWS)
    skewed = [p.drawn(LEFT_OUT_ROWS) for p in parts if p.dtype == dtype and p.variant]
    turns = []
    for aside, entry in left_out(drawn, models_of):
        turns.append((predicted_s(aside, load_gpu(aside.gpu), entry), aside.seconds))
        for part in skewed:
            same = part.where(models_of(part) == models_of(aside)[0])
            yield "model left out, skewed", by_entry(same, entry)
    yield "model left out", in_turns(turns, band_of_groups)
    for aside, entry in left_out(drawn, octaves_of):
        yield "octave left out", by_entry(aside, entry)
