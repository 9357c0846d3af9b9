"""Models of Qualcomm AI Hub on a chip that is left out, ten of them measured.

All programs of ten models are measured (a model is several: by runtime and precision), those of the
other models are judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.edge import SAMPLES, drawn, learn_programs, mean_error, one_hot, unseen
from lab.tables.edge import SPLITS, Latencies, Matrix, System, ai_hub, family, latencies, tiny
from lab.tables.rows import Floats
from planning.calibrate.edge import Prior, adapt, prior

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
        errors = [
            mean_error(table, one, d, drawn(table, SAMPLES, s)) for d in some for s in range(DRAWS)
        ]
        return float(np.mean(errors))

    return min((dataclasses.replace(blank, own=own) for own in SCRATCH), key=error)
