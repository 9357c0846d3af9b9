"""MLPerf Tiny, device left out: one benchmark predicted from the other measured ones.

Submitters bring a runtime to the same four models, and a device with another runtime is another
program: devices under the same submitter's runtime, of the same round, are weighted most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.fits.methods.few_shot import adapt
from lab.fits.methods.programs import learn_programs, one_hot
from lab.tables.edge.programs import System, tiny
from lab.tables.rows import Floats

QUANTITIES = {"latency": "latency_s", "energy": "energy_J_per_inference"}
Choice = tuple[float, float]
CHOICES: tuple[Choice, ...] = ((1.0, 1.0), (10.0, 3.0), (100.0, 10.0), (1000.0, 30.0))
"""Weights of devices under the same submitter's runtime, and under another of theirs: the pair that
errs least on the other devices, each of them left out in turn."""


def benchmarks(reference: Path) -> pl.DataFrame:
    """Return predicted and measured latency and energy of each benchmark of each device."""
    rows = []
    for quantity, column in QUANTITIES.items():
        systems, table = tiny(reference, column)
        for device in dict.fromkeys(system.device for system in systems):
            choice = chosen(systems, table.log, device)
            for predicted, measured in left_out(systems, table.log, device, choice):
                rows.append({"quantity": quantity, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)


def chosen(systems: Sequence[System], log: Floats, device: str) -> Choice:
    """Return the choice that errs least on all devices but one, which is not used."""
    rest = [i for i, one in enumerate(systems) if one.device != device]
    others, theirs = [systems[i] for i in rest], log[rest]

    def error(choice: Choice) -> float:
        names = dict.fromkeys(one.device for one in others)
        pairs = [pair for one in names for pair in left_out(others, theirs, one, choice)]
        return float(np.mean([abs(predicted / measured - 1.0) for predicted, measured in pairs]))

    return min(CHOICES, key=error)


def left_out(
    systems: Sequence[System], log: Floats, device: str, choice: Choice
) -> Iterator[tuple[float, float]]:
    """Yield the predicted and measured value of each benchmark of a device, the others measured.

    Args:
        systems: of each row, all of them.
        log: log seconds or joules, a column per benchmark.
        device: the one that is left out.
        choice: one of `CHOICES`.
    """
    others = [i for i, one in enumerate(systems) if one.device != device]
    programs = log.shape[1]
    for number, system in enumerate(systems):
        there = np.flatnonzero(~np.isnan(log[number])).tolist()
        if system.device != device or len(there) < 2:
            continue
        weights = _weights([systems[i] for i in others], system, choice)
        prior = learn_programs(log[others], weights)
        values = np.exp(log[number])
        for left in there:
            rest = [one for one in there if one != left]
            adapted = adapt(prior, one_hot(rest, programs), values[rest])
            predicted, _, _ = adapted.seconds(one_hot([left], programs))
            yield float(predicted[0]), float(values[left])


def _weights(others: Sequence[System], system: System, choice: Choice) -> Floats:
    """Return the weights of devices; those with many results share theirs among them."""
    devices = [one.device for one in others]
    same_runtime, same_submitter = choice
    factor = [
        same_runtime
        if (one.submitter, one.round) == (system.submitter, system.round)
        else same_submitter
        if one.submitter == system.submitter
        else 1.0
        for one in others
    ]
    return np.array([f / devices.count(one) for f, one in zip(factor, devices, strict=True)])
