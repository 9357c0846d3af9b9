"""Few-shot latency of networks on an edge device, from a few samples and from other devices.

A network's latency is nearly the sum of its layers' times, so a device is a vector of weights: time
per layer of each kind, relative to the mean latency. The prior has the mean and the covariance of
the weights of known devices. With samples, the posterior is that of Bayesian linear regression
(Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.3). The noise is that of the
known device with the largest model evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planning.calibrate.measurements import Gain, latencies, read_table
from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError
from simulators.core.folder import once
from simulators.core.jit import Floats, Ints
from simulators.edge.simulator import (
    DEVICE_FORMAT,
    SUFFIX,
    Weights,
    calibration_of,
    features,
    with_level,
)

NETWORK, LATENCY = "network", "latency_s"
FEWEST = 4
"""Fewest networks for a held-out test."""
LEVEL_SPREAD, LOG_LEVEL_SPREAD = 0.15, 1.0
"""Standard deviation of the mean latency of a few samples from that of all networks: relative, and
in log seconds for priors of logarithms."""


@dataclass(frozen=True)
class Prior:
    """Prior of a device's weights.

    Features are standardised over all networks. `mean` has an entry per feature; the covariance is
    `spread.T @ spread`, plus `own` squared on its diagonal.
    """

    centre: Floats
    scale: Floats
    mean: Floats
    spread: Floats
    own: float
    noises: Floats  # residuals of the known devices, relative
    is_log: bool = False

    def design(self, features: Floats) -> Floats:
        """Return standardised features, preceded by a column of ones for the level."""
        return with_level((features - self.centre) / self.scale)

    @property
    def covariance(self) -> Floats:
        """Return the covariance of the level and all weights, a square matrix."""
        features = self.mean.size
        level = LOG_LEVEL_SPREAD if self.is_log else LEVEL_SPREAD
        found = np.zeros((features + 1, features + 1))
        found[0, 0] = level**2
        found[1:, 1:] = self.spread.T @ self.spread + self.own**2 * np.eye(features)
        return found

    def on_features(self, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Return weights and covariance for features that are not standardised."""
        transform = np.eye(mean.size)
        transform[1:, 1:] /= self.scale[:, None]
        transform[0, 1:] = -self.centre / self.scale
        return transform @ mean, transform @ covariance @ transform.T


def prior(space: str) -> Prior:
    """Return the prior of a device's weights for networks of a search space."""
    found = once(read_calibration, calibration_of(space))["prior"]
    arrays = {n: np.array(found[n]) for n in ("centre", "scale", "mean", "spread", "noises")}
    return Prior(own=float(found["own"]), is_log=False, **arrays)


def adapt(prior: Prior, features: Floats, seconds: Floats) -> Weights:
    """Return the posterior weights of a device, given the latencies of a few networks.

    Args:
        prior: of the search space.
        features: a row per network, not standardised.
        seconds: latency of each network.

    Raises:
        UserError: there is no sample, or a latency is not positive.
    """
    if not seconds.size or not np.all(np.isfinite(seconds) & (seconds > 0.0)):
        raise UserError("write at least one measured latency, all above zero")
    design, covariance = prior.design(features), prior.covariance
    if prior.is_log:
        unit_s = float(np.exp(np.mean(np.log(seconds) - design[:, 1:] @ prior.mean)))
        level, target = 0.0, np.log(seconds / unit_s)
    else:
        unit_s = float(seconds.mean())
        level, target = 1.0, seconds / unit_s
    expected = np.concatenate([[level], prior.mean])
    residuals = target - design @ expected
    explained = design @ covariance @ design.T
    noise = max(prior.noises.tolist(), key=lambda one: _log_evidence(explained, residuals, one))
    gram = explained + noise**2 * np.eye(residuals.size)
    gain = np.linalg.solve(gram, design @ covariance).T  # a row per weight, a column per sample
    posterior = covariance - gain @ design @ covariance
    symmetric = (posterior + posterior.T) / 2.0
    mean, posterior = prior.on_features(expected + gain @ residuals, symmetric)
    return Weights(unit_s, mean, posterior, float(noise), prior.is_log)


def _log_evidence(explained: Floats, residuals: Floats, noise: float) -> float:
    """Return the log evidence of the residuals at a noise, plus a constant."""
    gram = explained + noise**2 * np.eye(residuals.size)
    _, log_volume = np.linalg.slogdet(gram)
    return -0.5 * float(residuals @ np.linalg.solve(gram, residuals) + log_volume)


def is_edge_file(file: Path) -> bool:
    """Return whether a file contains latencies of networks, not timed operators."""
    return {NETWORK, LATENCY} <= {*read_table(file).column_names}


def calibrate_device(name: str, measured: Path, space: str) -> tuple[list[Gain], Path]:
    """Fit a device to latencies of networks, and write the device as JSON.

    Args:
        name: name of the device; the file is `NAME.json`.
        measured: Parquet or CSV with the columns `network` and `latency_s`.
        space: search space of the networks: nb201, fbnet or ofa.

    Raises:
        UserError: the file cannot be read, has too few networks, or a latency is not positive.
    """
    table = read_table(measured, (NETWORK, LATENCY))
    texts = [str(text) for text in table[NETWORK].to_pylist()]
    seconds = latencies(table, LATENCY, str(measured))
    if len(texts) < FEWEST:
        raise UserError(f"{measured} has {len(texts)} networks; {FEWEST} are needed, 10 are better")
    rows, given = features(space, texts), prior(space)
    file = Path(name if name.endswith(SUFFIX) else f"{name}{SUFFIX}")
    about = {"measured": measured.name, "rows": len(texts)}
    try:
        file.write_text(text_of(adapt(given, rows, seconds), space, about), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    order = np.arange(len(texts))
    errors = [
        float(np.mean(list(_leave_one_out(given, rows, seconds, order[::step], adapts=adapts))))
        for step, adapts in ((1, False), (2, True), (1, True))
    ]
    return [Gain(f"networks of {space}", len(texts), *errors)], file


def text_of(weights: Weights, space: str, about: Mapping[str, Any]) -> str:
    """Return the content of a device's file; `about` describes the fitted rows."""
    found = {
        "format": DEVICE_FORMAT,
        "search_space": space,
        "about": dict(about),
        "unit_s": weights.unit_s,
        "mean": weights.mean.tolist(),
        "covariance": weights.covariance.tolist(),
        "noise": weights.noise,
    }
    return json.dumps(found, indent=1) + "\n"


def _leave_one_out(
    prior: Prior, features: Floats, seconds: Floats, networks: Ints, *, adapts: bool
) -> Iterator[float]:
    """Yield the relative error of each network, predicted from the other networks.

    Without `adapts`, the prediction is the mean of known devices, scaled to the other networks.
    """
    for held_out in networks.tolist():
        others = networks[networks != held_out]
        if adapts:
            weights = adapt(prior, features[others], seconds[others])
            predicted = weights.seconds(features[[held_out]])[0][0]
        else:
            relative = 1.0 + prior.design(features)[:, 1:] @ prior.mean
            predicted = seconds[others].mean() / relative[others].mean() * relative[held_out]
        yield abs(float(predicted) / seconds[held_out] - 1.0)
