"""Fit device latencies to networks of a search space, and the prior that devices share.

A device's weights are a least-squares fit to all its networks. The prior is of HELP's meta-train
devices; the spread of a device's own is chosen by leaving out each device family and adapting to
ten of its networks, as a user would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen
from lab.fits.methods.few_shot import Prior, adapt, fitted, learn
from lab.tables.edge import SPLITS, Latencies, family, latencies, table_of
from lab.tables.rows import Floats
from simulators.core.jit import Ints
from simulators.edge.device import calibration_of

FOLDER = calibration_of("nb201").parent
OWNS = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
SAMPLES, DRAWS, JUDGED = 10, 4, 1000


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield one calibration per search space."""
    for space in chosen(only, SPLITS, "search space"):
        table, known = latencies(reference, space), SPLITS[space].known
        errors = {own: left_out_errors(table, known, own) for own in OWNS}
        own = min(OWNS, key=lambda one: float(errors[one].mean()))
        prior = prior_of(table, known, own)
        names = ("own", "centre", "scale", "mean", "noises", "spread")
        devices = {}
        for device, seconds in sorted(table.seconds.items()):
            one = fitted(table.features, seconds)
            devices[device] = {"unit_s": one.unit_s, "noise": one.noise, "mean": one.mean}
        yield Calibration(
            name=space,
            content={"prior": {n: getattr(prior, n) for n in names}, "devices": devices},
            style=".5g",
            tables=[table_of(space)],
            rows=sum(map(len, table.seconds.values())),
            split="families of known devices left out in turn, ten networks of a device measured",
            errors=errors[own],
        )


def prior_of(table: Latencies, known: Sequence[str], own: float) -> Prior:
    """Return what some devices of a table have in common."""
    seconds = [table.seconds[device] for device in known]
    return learn(table.features, seconds, [family(device) for device in known], own)


def left_out_errors(table: Latencies, known: Sequence[str], own: float) -> Floats:
    """Return the mean relative error of each device and draw, with ten of its networks measured."""
    errors = []
    for device in known:
        prior = prior_of(table, [one for one in known if family(one) != family(device)], own)
        errors += [off(table, prior, device, drawn(table, SAMPLES, seed)) for seed in range(DRAWS)]
    return np.array(errors)


def drawn(table: Latencies, count: int, seed: int) -> Ints:
    """Return the numbers of so many networks, drawn at random."""
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    return np.asarray(generator.choice(len(table.features), count, replace=False), np.int64)


def unseen(table: Latencies, device: str, samples: Ints) -> Ints:
    """Return the networks that were not measured, without degenerate ones."""
    seconds = table.seconds[device]
    kept = seconds > np.quantile(seconds, table.degenerate) if table.degenerate else seconds > 0.0
    kept[samples] = False
    return np.flatnonzero(kept)


def off(table: Latencies, prior: Prior, device: str, samples: Ints) -> float:
    """Return the mean relative error of a device on networks that were not measured."""
    seconds = table.seconds[device]
    weights = adapt(prior, table.features[samples], seconds[samples])
    rest = unseen(table, device, samples)[:: max(1, len(seconds) // JUDGED)]
    predicted, _, _ = weights.seconds(table.features[rest])
    return float(np.mean(np.abs(predicted / seconds[rest] - 1.0)))
