"""Latencies of networks on new devices, 10, 50 or 100 of them measured: HELP's tables and split.

Beside each error stands that of the same features without other devices: a fit from scratch, whose
spread of weights is the best of several on the known devices. Samples are drawn; those chosen for
what they teach have a line of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lab.claims.lines import at_least, at_most, rank_correlation, within
from lab.fits.edge.edge import SAMPLES, drawn, prior_of, unseen
from lab.fits.methods.few_shot import Prior, adapt, choose, prior
from lab.tables.edge.networks import SPLITS, Latencies, family, latencies, table_of
from lab.tables.rows import Bools
from simulators.core.contract import Check
from simulators.core.jit import Ints

NEEDS = tuple(map(table_of, SPLITS))
COUNTS = (SAMPLES, 50, 100)
DRAWS = 4
RANKS, PEER_RANKS = 0.93, 0.932
"""Mean Spearman asked for of cells, and what HELP's authors claim, at ten samples."""

GPUS = ("1080ti", "2080ti", "titan")
KINDS = MappingProxyType(
    {
        "CPUs": ("silver_4114", "silver_4210r", "gold_6226", "gold_6240", "raspi4"),
        "edge": ("samsung_a50", "samsung_s7", "pixel2", "pixel3", "essential_ph_1", "fpga"),
    }
)
"""Devices of other kinds than GPUs."""

SCRATCH = (0.03, 0.1, 0.3)
SCRATCH_NOISES = np.geomspace(0.003, 0.3, 9)


@dataclass(frozen=True)
class Outcome:
    """How far a device's other networks are off."""

    ranks: float
    error: float
    inside: Bools


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the lines of each search space, and those of GPUs alone that stand for other kinds."""
    for space, split in SPLITS.items():
        table = latencies(reference, space)
        yield from _lines(space, table, split.known, split.new)
        if space != "ofa":
            yield from _from_gpus(space, table)


def _from_gpus(space: str, table: Latencies) -> Iterator[Check]:
    """Yield what cells on GPUs say of processors and of devices at the edge."""
    known = [device for device in table.seconds if device.startswith(GPUS)]
    ours = prior_of(table, known, prior(space).own)
    ranked = table.features @ (ours.mean / ours.scale)
    for kind, devices in KINDS.items():
        blind = float(np.mean([rank_correlation(ranked, table.seconds[d]) for d in devices]))
        name = f"{space}, GPUs to {kind}"
        yield at_least(f"{name}, 0 samples: Spearman", blind, None, len(devices), unit="")
        for count in COUNTS[:2]:
            ranks, error = _means(_on(table, ours, devices, count))
            note = f"Spearman {ranks:.3f}"
            yield at_most(f"{name}, {count} samples: MAPE", error, None, len(devices) * DRAWS, note)


def _lines(
    space: str, table: Latencies, known: Sequence[str], new: Sequence[str]
) -> Iterator[Check]:
    ours = prior(space)
    asked = space == "nb201"
    for count in COUNTS:
        name = f"{space}, {count} samples"
        found = _on(table, ours, new, count)
        blank = _on(table, _scratch(table, ours, known, count), new, count)
        ranks, error = _means(found)
        theirs, theirs_error = _means(blank)
        first = asked and count == SAMPLES
        note = f"{len(new)} new devices, {DRAWS} draws; from scratch {theirs:.3f}"
        note += f"; HELP claims {PEER_RANKS}" if first else ""
        limit = max(RANKS, theirs) if first else theirs
        yield at_least(f"{name}: Spearman", ranks, limit, len(found), note, unit="")
        aside = f"without the quickest {table.degenerate:.0%}; " if table.degenerate else ""
        note = f"{aside}the limit is from scratch"
        yield at_most(f"{name}: MAPE", error, theirs_error, len(found), note)
        if count == SAMPLES:
            taught = [
                _outcome(table, ours, device, choose(ours, table.features, count)) for device in new
            ]
            ranks, error = _means(taught)
            note = f"MAPE {error:.1f} %"
            yield at_least(f"{name} that teach most: Spearman", ranks, None, len(new), note, "")
            yield from within(f"{name}: coverage", [one.inside for one in found], "few-shot")


def _on(table: Latencies, given: Prior, devices: Sequence[str], count: int) -> list[Outcome]:
    """Return what becomes of each device and draw."""
    return [
        _outcome(table, given, device, drawn(table, count, seed))
        for device in devices
        for seed in range(DRAWS)
    ]


def _outcome(table: Latencies, given: Prior, device: str, samples: Ints) -> Outcome:
    seconds = table.seconds[device]
    weights = adapt(given, table.features[samples], seconds[samples])
    predicted, low, high = weights.seconds(table.features)
    others = np.setdiff1d(np.arange(len(seconds)), samples)
    rest = unseen(table, device, samples)
    return Outcome(
        rank_correlation(predicted[others], seconds[others]),
        float(np.mean(np.abs(predicted[rest] / seconds[rest] - 1.0))),
        (low[rest] <= seconds[rest]) & (seconds[rest] <= high[rest]),
    )


def _scratch(table: Latencies, ours: Prior, known: Sequence[str], count: int) -> Prior:
    """Return what is known of a device without any other: that weights are small, and how small."""
    blank = dataclasses.replace(
        ours,
        mean=np.zeros_like(ours.mean),
        spread=np.zeros((1, ours.mean.size)),
        noises=SCRATCH_NOISES,
    )
    tried = [dataclasses.replace(blank, own=own) for own in SCRATCH]
    some = [
        device
        for device in known
        if device == next(d for d in known if family(d) == family(device))
    ]
    return min(tried, key=lambda one: _means(_on(table, one, some, count))[1])


def _means(found: Sequence[Outcome]) -> tuple[float, float]:
    """Return the mean rank correlation and the mean error in percent."""
    return (
        float(np.mean([one.ranks for one in found])),
        100.0 * float(np.mean([one.error for one in found])),
    )
