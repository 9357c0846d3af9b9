"""Fit device latencies to networks of a search space, and the prior that devices share.

docs/explanation/edge.md describes the fit. Where the layers of programs are not known, the prior is
over compiled programs on chips: a program is a model compiled for a runtime in a precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, declared, settings
from lab.tables.edge import SPLITS, Latencies, family, latencies, table_of
from planning.calibrate.edge import Prior, adapt
from simulators.core.jit import Floats, Ints
from simulators.edge.simulator import Weights, with_level

CONFIG = settings(__file__)


def learn(
    features: Floats, seconds: Sequence[Floats], families: Sequence[str], own: float
) -> Prior:
    """Return the prior of a device's weights, from latencies of many networks on other devices.

    `features` has a row per network, `seconds` an array per device. Each family of devices has the
    weight of one device. `own`: further spread of the weights.
    """
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    design = with_level((features - centre) / scale)
    fits = [_least_squares(design, one) for one in seconds]
    weights = np.array([weights[1:] for weights, _ in fits])
    share = np.array([1.0 / families.count(family) for family in families])
    distinct = len(set(families))
    mean = share @ weights / distinct
    spread = np.sqrt(share / max(distinct - 1, 1))[:, None] * (weights - mean)
    return Prior(centre, scale, mean, spread, own, np.array([noise for _, noise in fits]))


def fitted(features: Floats, seconds: Floats) -> Weights:
    """Return the error model of a device with many measured networks: only noise remains."""
    weights, noise = _least_squares(with_level(features), seconds)
    none = np.zeros((weights.size, weights.size))
    return Weights(float(seconds.mean()), weights, none, noise)


def _least_squares(design: Floats, seconds: Floats) -> tuple[Floats, float]:
    """Return the weights of a device, relative to its mean, and the deviation of residuals."""
    relative = seconds / seconds.mean()
    gram = design.T @ design + np.eye(design.shape[1])  # a ridge of one network
    weights = np.linalg.solve(gram, design.T @ relative)
    return weights, float(np.sqrt(np.mean((relative - design @ weights) ** 2)))


def fit_edge(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield one calibration per search space."""
    for space in chosen(only, SPLITS, "search space"):
        table, known = latencies(reference, space), SPLITS[space].known
        errors = {own: left_out_errors(table, known, own) for own in CONFIG.owns}
        own = min(CONFIG.owns, key=lambda one: float(errors[one].mean()))
        prior = _prior_of(table, known, own)
        names = ("own", "centre", "scale", "mean", "noises", "spread")
        devices = {}
        for device, seconds in sorted(table.seconds.items()):
            one = fitted(table.features, seconds)
            devices[device] = {"unit_s": one.unit_s, "noise": one.noise, "mean": one.mean}
        yield declared(
            "edge",
            name=space,
            tables=[table_of(space)],
            content={"prior": {n: getattr(prior, n) for n in names}, "devices": devices},
            rows=sum(map(len, table.seconds.values())),
            errors=errors[own],
        )


def _prior_of(table: Latencies, known: Sequence[str], own: float) -> Prior:
    return learn(
        table.features, [table.seconds[name] for name in known], [*map(family, known)], own
    )


def left_out_errors(table: Latencies, known: Sequence[str], own: float) -> Floats:
    """Return the mean relative error of each device and draw, with ten of its networks measured."""
    errors = []
    for device in known:
        prior = _prior_of(table, [one for one in known if family(one) != family(device)], own)
        errors += [
            mean_error(table, prior, device, drawn(table, CONFIG.samples, seed))
            for seed in range(CONFIG.draws)
        ]
    return np.array(errors)


def drawn(table: Latencies, count: int, seed: int) -> Ints:
    """Return the positions of `count` networks, drawn at random."""
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    return np.asarray(generator.choice(len(table.features), count, replace=False), np.int64)


def unseen(table: Latencies, device: str, samples: Ints) -> Ints:
    """Return the networks that were not measured, without degenerate ones."""
    seconds = table.seconds[device]
    kept = seconds > np.quantile(seconds, table.degenerate) if table.degenerate else seconds > 0.0
    kept[samples] = False
    return np.flatnonzero(kept)


def mean_error(table: Latencies, prior: Prior, device: str, samples: Ints) -> float:
    """Return the mean relative error of a device on networks that were not measured."""
    seconds = table.seconds[device]
    weights = adapt(prior, table.features[samples], seconds[samples])
    rest = unseen(table, device, samples)[:: max(1, len(seconds) // CONFIG.judged)]
    predicted, _, _ = weights.seconds(table.features[rest])
    return float(np.mean(np.abs(predicted / seconds[rest] - 1.0)))


def learn_programs(log_s: Floats, weights: Floats, labels: Sequence[Sequence[str]] = ()) -> Prior:
    """Return the prior of the programs' log latencies on a new chip.

    `log_s` has a row per chip and a column per program, NaN where not measured. `weights`: each
    chip's similarity to the new one. `labels`: kinds of labels, each with a label per program.
    """
    there = ~np.isnan(log_s)
    share = weights / weights.sum()
    mean, level = np.zeros(log_s.shape[1]), np.zeros(len(log_s))
    for _ in range(CONFIG.rounds):
        before = mean
        mean = _mean(log_s - level[:, None], there, share[:, None], axis=0)
        level = _mean(log_s - mean, there, np.ones_like(mean), axis=1)
        level -= share @ level
        if np.abs(mean - before).max() < CONFIG.still:
            break
    left = np.where(there, log_s - mean - level[:, None], 0.0)
    known = mean - mean[there.any(axis=0)].mean()
    rows = [np.sqrt(share)[:, None] * left]
    for label in labels:
        kinds = np.array(label)
        rows.append(CONFIG.shared * (np.unique(kinds)[:, None] == kinds).astype(np.float64))
    spread, noises = np.concatenate(rows), np.array(CONFIG.noises)
    centre, scale = np.zeros_like(mean), np.ones_like(mean)
    return Prior(centre, scale, known, spread, CONFIG.program_spread, noises, is_log=True)


def _mean(values: Floats, there: np.ndarray, weights: Floats, axis: int) -> Floats:
    """Return weighted means of the measured entries; 0 without any."""
    total = np.sum(np.where(there, values * weights, 0.0), axis=axis)
    weight = np.sum(np.where(there, weights, 0.0), axis=axis)
    return np.asarray(total / np.where(weight > 0.0, weight, 1.0), np.float64)


def one_hot(programs: Sequence[int], count: int) -> Floats:
    """Return the features of programs, given their numbers: a row of `count` zeros and a one."""
    return np.asarray(np.eye(count)[list(programs)], np.float64).reshape(-1, count)
