"""Fit how far boards slow down while their matrix units are busy, to layers of many tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.methods.grid_search import best_share
from lab.tables.layers import BOARDS, LINEAR, LayerRows, layer_rows
from simulators.composition.throttling import CALIBRATION, OTHER
from simulators.core.jit import Floats

FOLDER = CALIBRATION.parent
SPLIT = "layers of more than 512 tokens, A100, H100, A40; Llama-2-70B and Llama-3-70B held out"
BUSY_TOKENS = 512
"""With more tokens than this the products of a layer are bound by arithmetic."""
SHARES = np.arange(0.0, 1.0 + 0.01 / 2, 0.01)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the slowdown of each board, and their mean."""
    slowdown, held_out, rows = {}, [], 0
    layers = layer_rows(reference)
    for board in BOARDS.values():
        mine = [one for one in layers if one.replica.gpu.name == board]
        fitted = [one for one in mine if not one.is_test]
        slowdown[board] = best_share(SHARES, [partial(_busy_errors, one) for one in fitted])
        held_out += [_busy_errors(one, slowdown[board]) for one in mine if one.is_test]
        rows += sum(int(np.sum(one.tokens > BUSY_TOKENS)) for one in fitted)
    slowdown[OTHER] = float(np.mean([*slowdown.values()]))
    yield calibration(
        CALIBRATION.stem,
        hashes(reference, [LINEAR]),
        rows=rows,
        split=SPLIT,
        held_out=np.expm1(np.concatenate(held_out)),
        lines=table_lines("slowdown", slowdown),
    )


def _busy_errors(layers: LayerRows, share: float) -> Floats:
    """Return |log error| of the layers that keep matrix units busy."""
    busy = layers.tokens > BUSY_TOKENS
    off: Floats = np.abs(np.log(layers.predicted_s(share) / layers.measured_s)[busy])
    return off
