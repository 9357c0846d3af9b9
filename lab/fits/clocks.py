"""Fit how much GPUs slow down while their tensor cores are busy, to layers of many tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.methods.grid_search import best_share
from lab.tables.passes import LAYER_GPUS, LINEAR, LayerRows, layer_rows
from simulators.composition.throttling import CALIBRATION, OTHER
from simulators.core.jit import Floats

FOLDER = CALIBRATION.parent
BUSY_TOKENS = 512
"""With more tokens, the products of a layer are compute-bound."""
SHARES = np.arange(0.0, 1.0 + 0.01 / 2, 0.01)


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the slowdown of each GPU, and their mean for other GPUs."""
    slowdown, held_out, rows = {}, [], 0
    layers = layer_rows(reference)
    for gpu in LAYER_GPUS.values():
        mine = [one for one in layers if one.replica.gpu.name == gpu]
        fitted = [one for one in mine if not one.is_test]
        slowdown[gpu] = best_share(SHARES, [partial(_busy_errors, one) for one in fitted])
        held_out += [_busy_errors(one, slowdown[gpu]) for one in mine if one.is_test]
        rows += sum(int(np.sum(one.tokens > BUSY_TOKENS)) for one in fitted)
    slowdown[OTHER] = float(np.mean([*slowdown.values()]))
    yield Calibration(
        name=CALIBRATION.stem,
        content={"slowdown": slowdown},
        style=".3g",
        tables=[LINEAR],
        rows=rows,
        split="layers of more than 512 tokens, A100, H100, A40; "
        "Llama-2-70B and Llama-3-70B held out",
        errors=np.expm1(np.concatenate(held_out)),
    )


def _busy_errors(layers: LayerRows, share: float) -> Floats:
    """Return |log(predicted / measured)| of the compute-bound layers."""
    error = np.abs(np.log(layers.predicted_s(share) / layers.measured_s))
    return np.asarray(error[layers.tokens > BUSY_TOKENS], np.float64)
