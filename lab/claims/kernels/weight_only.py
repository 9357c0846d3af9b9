"""How far products of narrow weights are from measured ones of inner lengths no fit saw.

A model's layers share their inner lengths, so a fifth of these is left out at a time, with all
matrices that have them. Intervals are judged by turns: each turn's rows by the residuals of the
others. Marlin's kernels, which engines run and no table here times, stand beside those that are
lent to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.judged import band_of_turns, held_by_others, quantiles
from lab.claims.lines import absent, at_most, percent_off, within
from lab.fits.kernels.tensor_cores import inner_lengths_left_out
from lab.tables.kernels.tensor_cores import PRODUCERS, TABLE, read_tensor_rows
from lab.tables.kernels.weight_only import TABLE as MARLIN
from lab.tables.kernels.weight_only import Layer, read_layers_of_marlin
from lab.tables.rows import Bools
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.kernels.families.tensor_cores import WEIGHT_ONLY, measured_rates
from simulators.kernels.price import price

BAR = 16.0

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
        turns = inner_lengths_left_out(part, shipped)
        if not turns:
            found.append(absent(name, "too few rows, or inner lengths"))
            continue
        errors = np.concatenate([percent_off(*turn) for turn in turns])
        mean = float(np.mean(np.abs(errors)))
        found.append(at_most(name, mean, BAR, errors.size, quantiles(errors)))
        inside += held_by_others(turns, band_of_turns)
    note = "each turn's rows in intervals of the other turns"
    found += within("weight-only product coverage, inner lengths left out", inside, note)
    return found + list(_marlin(reference))


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
