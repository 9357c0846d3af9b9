"""A Gaussian process over measured curves, with Student-t noise.

It models the departure from `start + bytes / rate` (Rasmussen and Williams, 2006). Sizes correlate
by their distance, curves by shared collective, precision and ranks. The scales are choices, made
for all GPUs and libraries by cross-validation over sizes. Most runs repeat within a few percent and
some, on GPUs that share host bridges, are off by half: hence the tails of the noise (Jylänki,
Vanhatalo and Vehtari, 2011), which scikit-learn's process does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.tables.collectives import Curves
from simulators.core.jit import Floats, Ints

DEPARTURE, REACH_OCTAVES, NOISE = 0.2, 3.0, 0.03
"""Size and length scale of departures, and the spread between versions of a library."""
TAIL, ROUNDS = 2.0, 6
"""Degrees of freedom of the noise, and rounds of reweighting."""
OWN, OTHER_COLLECTIVE, OTHER_DTYPE, OTHER_RANKS = 0.05, 0.6, 0.9, 0.6
"""Size of a curve's own departure, and correlations of curves that differ in one respect."""


@dataclass(frozen=True)
class LinearTrend:
    """The plain part of a curve."""

    start_s: float
    bytes_per_s: float

    def log_s(self, octave: Floats) -> Floats:
        """Return the log of seconds."""
        return np.log(self.start_s + np.exp2(octave) / self.bytes_per_s)


def plain_line(octave: Floats, log_s: Floats) -> LinearTrend:
    """Return the start and rate with the least mean |log error|, by search on a grid."""
    size, seconds = np.exp2(octave), np.exp(log_s)
    starts = seconds.min() * np.linspace(0.6, 1.05, 19)
    rates = (size / seconds).max() * np.geomspace(0.8, 1.6, 29)
    plain = starts[:, None, None] + size / rates[None, :, None]
    errors = np.abs(np.log(plain) - log_s).mean(axis=2)
    best = np.unravel_index(np.argmin(errors), errors.shape)
    return LinearTrend(float(starts[best[0]]), float(rates[best[1]]))


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process: the plain part of every curve, and a weight for every row."""

    seen: Curves
    lines: dict[int, LinearTrend]
    weights: Floats

    def log_s(self, curve: Ints, octave: Floats) -> Floats:
        """Return log seconds at sizes of curves that have rows of their own."""
        log_s = _covariance(self.seen, curve, octave) @ self.weights
        for code, line in self.lines.items():
            mine = curve == code
            log_s[mine] += line.log_s(octave[mine])
        return log_s


def learn(seen: Curves) -> GaussianProcess:
    """Return the process fitted to some rows."""
    residual = np.zeros_like(seen.log_s)
    lines = {}
    for code in np.unique(seen.curve).tolist():
        mine = seen.curve == code
        lines[code] = plain_line(seen.octave[mine], seen.log_s[mine])
        residual[mine] = seen.log_s[mine] - lines[code].log_s(seen.octave[mine])
    gram = _covariance(seen, seen.curve, seen.octave)
    variance = np.full(residual.size, NOISE**2)
    for _ in range(ROUNDS):
        weights = np.linalg.solve(gram + np.diag(variance), residual).astype(np.float64)
        left = weights * variance
        variance = np.maximum((TAIL * NOISE**2 + left**2) / (TAIL + 1.0), NOISE**2)
    return GaussianProcess(seen, lines, weights)


def _covariance(seen: Curves, curve: Ints, octave: Floats) -> Floats:
    far = np.sqrt(3.0) * np.abs(octave[:, None] - seen.octave[None, :]) / REACH_OCTAVES
    near: Floats = (1.0 + far) * np.exp(-far)
    labels = np.array([[collective, dtype, str(ranks)] for collective, dtype, ranks in seen.keys])
    same = labels[:, None, :] == labels[None, :, :]
    likeness = np.where(same, 1.0, [OTHER_COLLECTIVE, OTHER_DTYPE, OTHER_RANKS]).prod(axis=2)
    alike = DEPARTURE**2 * likeness + OWN**2 * same.all(axis=2)
    covariance: Floats = near * alike[np.ix_(curve, seen.curve)]
    return covariance
