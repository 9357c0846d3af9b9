"""Latencies of networks on new devices, ten of them measured: HELP's tables and split.

The baseline is a fit from scratch with the same features, without other devices; its spread of
weights is the best of several on the known devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.edge.edge import SAMPLES, drawn, off, unseen
from lab.fits.methods.few_shot import Prior, adapt, prior
from lab.tables.edge.networks import SPLITS, Latencies, family, latencies

DRAWS = 4
SCRATCH = (0.03, 0.1, 0.3)
SCRATCH_NOISES = np.geomspace(0.003, 0.3, 9)


def networks(reference: Path) -> pl.DataFrame:
    """Return predicted and measured latencies of the networks that were not measured."""
    return together(
        frame.with_columns(space=pl.lit(space))
        for space, split in SPLITS.items()
        for frame in _devices(latencies(reference, space), prior(space), split.known, split.new)
    )


def _devices(
    table: Latencies, ours: Prior, known: Sequence[str], new: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Yield the rows of each new device and draw."""
    blank = _scratch(table, ours, known)
    for device in new:
        seconds = table.seconds[device]
        for draw in range(DRAWS):
            samples = drawn(table, SAMPLES, draw)
            predicted, low, high = _seconds(table, ours, device, samples)
            rest = np.setdiff1d(np.arange(len(seconds)), samples)
            yield columns(
                predicted=predicted[rest],
                measured=seconds[rest],
                lo=low[rest],
                hi=high[rest],
                baseline=_seconds(table, blank, device, samples)[0][rest],
                is_judged=np.isin(rest, unseen(table, device, samples)),
                device=device,
                draw=draw,
            )


def _seconds(
    table: Latencies, given: Prior, device: str, samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of all networks and their intervals, given some measured ones."""
    weights = adapt(given, table.features[samples], table.seconds[device][samples])
    return weights.seconds(table.features)


def _scratch(table: Latencies, ours: Prior, known: Sequence[str]) -> Prior:
    """Return a prior without other devices: weights as small as err least on known devices."""
    blank = dataclasses.replace(
        ours,
        mean=np.zeros_like(ours.mean),
        spread=np.zeros((1, ours.mean.size)),
        noises=SCRATCH_NOISES,
    )
    some = list({family(device): device for device in reversed(known)}.values())

    def error(one: Prior) -> float:
        errors = [off(table, one, d, drawn(table, SAMPLES, s)) for d in some for s in range(DRAWS)]
        return float(np.mean(errors))

    return min((dataclasses.replace(blank, own=own) for own in SCRATCH), key=error)
