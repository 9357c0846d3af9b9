"""Claims about edge devices: networks, AI Hub's models and MLPerf Tiny on devices left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.claim import Cells, columns
from lab.fits.edge import CONFIG, drawn, learn_programs, mean_error, one_hot, unseen
from lab.tables.edge import SPLITS, Latencies, System, ai_hub, family, latencies, tiny
from lab.tables.rows import Floats
from planning.calibrate.edge import Prior, adapt, prior

MODELS, DRAWS = 10, 4
SCRATCH = (0.03, 0.1, 0.3)  # spreads of weights that the baseline chooses from
SCRATCH_NOISES = np.geomspace(0.003, 0.3, 9)
QUANTITIES = {"latency": "latency_s", "energy": "energy_J_per_inference"}

Choice = tuple[float, float]
CHOICES: tuple[Choice, ...] = ((1.0, 1.0), (10.0, 3.0), (100.0, 10.0), (1000.0, 30.0))
"""Weights of devices under the same submitter's runtime, and under another runtime of theirs. The
pair with the least error on the other devices, each left out in turn, is chosen."""


def programs(reference: Path, draws: Sequence[int] = range(DRAWS)) -> Iterator[pl.DataFrame]:
    """Yield seconds of AI Hub's programs on a chip left out, ten of its models measured.

    A model is several programs, by runtime and precision; all programs of ten models are measured.
    `draws`: seeds by which the ten models are drawn.
    """
    table = ai_hub(reference)
    model, _, precision, runtime = (list(names) for names in zip(*table.programs, strict=True))
    both = [f"{r} {p}" for r, p in zip(runtime, precision, strict=True)]
    models, features = np.array(model), one_hot(range(len(model)), len(model))
    for number, chip in enumerate(table.chips):
        mine, others = table.log[number], np.delete(table.log, number, 0)
        labels = [both, runtime, precision, model]
        learnt = learn_programs(others, np.ones(len(table.chips) - 1), labels)
        known = np.flatnonzero(~np.isnan(mine) & ~np.isnan(others).all(axis=0))
        for draw in draws:
            generator = np.random.default_rng(np.random.SeedSequence(draw))
            measured = generator.choice(np.unique(models[known]), MODELS, replace=False)
            samples = known[np.isin(models[known], measured)]
            rest = np.setdiff1d(known, samples)
            weights = adapt(learnt, features[samples], np.exp(mine[samples]))
            predicted, low, high = weights.seconds(features[rest])
            named = ["|".join(table.programs[i]) for i in rest.tolist()]
            cells = {"chip": chip, "draw": draw, "program": named, "lo": low, "hi": high}
            yield columns(predicted=predicted, measured=np.exp(mine[rest]), **cells)


def benchmarks(reference: Path) -> Iterator[Cells]:
    """Yield latency and energy of each benchmark of MLPerf Tiny, the device left out.

    The other benchmarks of the device are measured. Submitters bring a runtime to the same four
    models, and a device under another runtime behaves as another device: devices under the same
    submitter's runtime, of the same round, are weighted most.
    """
    for quantity, column in QUANTITIES.items():
        systems, table = tiny(reference, column)
        for device in dict.fromkeys(system.device for system in systems):
            choice = chosen(systems, table.log, device)
            for predicted, measured in left_out(systems, table.log, device, choice):
                yield {"quantity": quantity, "predicted": predicted, "measured": measured}


def chosen(systems: Sequence[System], log: Floats, device: str) -> Choice:
    """Return the choice with the least error on all devices but one, which is not used."""
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

    `log`: log seconds or joules, with a row per system and a column per benchmark.
    """
    others = [i for i, one in enumerate(systems) if one.device != device]
    count = log.shape[1]
    for number, system in enumerate(systems):
        there = np.flatnonzero(~np.isnan(log[number])).tolist()
        if system.device != device or len(there) < 2:
            continue
        learnt = learn_programs(log[others], _weights([systems[i] for i in others], system, choice))
        values = np.exp(log[number])
        for left in there:
            rest = [one for one in there if one != left]
            adapted = adapt(learnt, one_hot(rest, count), values[rest])
            predicted, _, _ = adapted.seconds(one_hot([left], count))
            yield float(predicted[0]), float(values[left])


def _weights(others: Sequence[System], system: System, choice: Choice) -> Floats:
    """Return the weights of systems; the systems of one device share its weight."""
    devices = [one.device for one in others]
    same_runtime, same_submitter = choice
    weights = []
    for one in others:
        weight = same_submitter if one.submitter == system.submitter else 1.0
        if (one.submitter, one.round) == (system.submitter, system.round):
            weight = same_runtime
        weights.append(weight / devices.count(one.device))
    return np.array(weights)


def networks(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield latencies of networks on new devices, ten of them measured: HELP's tables and split.

    The baseline is a fit with the same features without other devices.
    """
    for space, split in SPLITS.items():
        table, ours = latencies(reference, space), prior(space)
        scratch = _from_scratch(table, ours, split.known)
        for device in split.new:
            seconds = table.seconds[device]
            for draw in range(DRAWS):
                samples = drawn(table, CONFIG.samples, draw)
                (predicted, low, high), (baseline, _, _) = (
                    adapt(one, table.features[samples], seconds[samples]).seconds(table.features)
                    for one in (ours, scratch)
                )
                rest = np.setdiff1d(np.arange(len(seconds)), samples)
                cells = {"space": space, "device": device, "draw": draw}
                ends = {"lo": low[rest], "hi": high[rest], "baseline": baseline[rest]}
                judged = np.isin(rest, unseen(table, device, samples))
                times = {"predicted": predicted[rest], "measured": seconds[rest]}
                yield columns(**times, **ends, is_judged=judged, **cells)


def _from_scratch(table: Latencies, ours: Prior, known: Sequence[str]) -> Prior:
    """Return a prior without other devices, with the spread of least error on known devices."""
    blank = dataclasses.replace(
        ours,
        mean=np.zeros_like(ours.mean),
        spread=np.zeros((1, ours.mean.size)),
        noises=SCRATCH_NOISES,
    )
    some = list({family(device): device for device in reversed(known)}.values())

    def error(one: Prior) -> float:
        errors = [
            mean_error(table, one, d, drawn(table, CONFIG.samples, s))
            for d in some
            for s in range(DRAWS)
        ]
        return float(np.mean(errors))

    return min((dataclasses.replace(blank, own=own) for own in SCRATCH), key=error)
