"""How far products of narrow weights are from measured ones of inner lengths no fit saw.

A model's layers share their inner lengths, so a fifth of these is left out at a time, with all
matrices that have them. Marlin's kernels, which engines run and no table here times, stand beside
those that are lent to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.judged import quantiles
from lab.claims.lines import absent, at_most, percent_off, within
from lab.fits.kernels.tensor_cores import fit_bent, seconds_of
from lab.tables.kernels.tensor_cores import PRODUCERS, TABLE, read_tensor_rows
from lab.tables.kernels.weight_only import TABLE as MARLIN
from lab.tables.kernels.weight_only import Layer, read_layers_of_marlin
from lab.tables.rows import Bools, Floats, Rows, fraction, group_of
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.evidence.intervals import WIDEST, interval_s
from simulators.kernels.families.tensor_cores import WEIGHT_ONLY, measured_rates
from simulators.kernels.price import price

BAR = 16.0

FOLDS, FOLD_ROWS, FEWEST_ROWS = 5, 2500, 100
"""Parts of the inner lengths; rows of a kernel that are foretold: drawn, at most and least."""

MARLIN_FRAMEWORK = "vllm"
"""An engine that runs Marlin's kernels."""


def checks(reference: Path, rows: str) -> list[Check]:  # noqa: ARG001 - the same rows either way
    """Return errors and coverage of inner lengths left out, and errors of Marlin's layers."""
    parts = [part for part in read_tensor_rows(reference, PRODUCERS) if part.dtype in WEIGHT_ONLY]
    if not parts:
        return [absent("kernels: weight-only products", f"{TABLE} is absent")]
    found: list[Check] = []
    inside: list[Bools] = []
    for part in parts:
        shipped = measured_rates(part.gpu).get((part.framework, part.dtype))
        if shipped is None:
            continue
        name = f"{part.gpu} {part.framework} {part.dtype} product MAPE, inner lengths left out"
        drawn = part.drawn(FOLD_ROWS)
        if len(drawn) < FEWEST_ROWS or np.unique(folds_of(drawn)).size < FOLDS:
            found.append(absent(name, "too few rows, or inner lengths"))
            continue
        alpha = 1.0 if shipped.correction is None else shipped.correction.alpha
        predicted_s = foretold_s(drawn, alpha)
        errors = percent_off(predicted_s, drawn.seconds)
        mean = float(np.mean(np.abs(errors)))
        found.append(at_most(name, mean, BAR, errors.size, quantiles(errors)))
        lo_s, hi_s = interval_s(shipped.band or WIDEST, predicted_s)
        inside.append(np.asarray((lo_s <= drawn.seconds) & (drawn.seconds <= hi_s)))
    found += within("weight-only product coverage, inner lengths left out", inside)
    return found + list(_marlin(reference))


def foretold_s(rows: Rows, alpha: float) -> Floats:
    """Return what fits say of rows that saw no matrix of their inner length.

    Args:
        rows: of one kernel.
        alpha: slope that the correction leaves to the formula.
    """
    fold = folds_of(rows)
    said, gpu = np.empty(len(rows)), load_gpu(rows.gpu)
    for one in np.unique(fold):
        aside = fold == one
        rates = fit_bent(rows.where(~aside), gpu, alpha)
        said[aside] = seconds_of(rows.where(aside), rates, gpu)
    return said


def folds_of(rows: Rows) -> Floats:
    """Return which fold each row is left out with, by its inner length."""
    return np.floor(FOLDS * fraction(group_of([rows.sizes["k"]])))


def _marlin(reference: Path) -> Iterator[Check]:
    """Yield the error of how much faster 4-bit weights are, by board; nothing is fitted to it."""
    layers = read_layers_of_marlin(reference)
    if not layers:
        yield absent("kernels: Marlin's layers", f"{MARLIN} is absent")
    for gpu in dict.fromkeys(layer.gpu for layer in layers):
        mine = [layer for layer in layers if layer.gpu == gpu]
        ours = np.array([_speedup(layer) for layer in mine])
        theirs = np.array([layer.speedup for layer in mine])
        errors = percent_off(ours, theirs)
        note = f"ours {ours.mean():.1f} times as fast, theirs {theirs.mean():.1f}"
        mean = float(np.mean(np.abs(errors)))
        yield at_most(f"{gpu} 4-bit layers by Marlin, speed-up", mean, None, errors.size, note)


def _speedup(layer: Layer) -> float:
    def seconds(stored: str) -> float:
        operator, gpu = layer.products(stored), load_gpu(layer.gpu)
        return float(np.sum(price(operator, gpu, framework=MARLIN_FRAMEWORK).latency_s))

    return seconds("") / seconds("int4")
