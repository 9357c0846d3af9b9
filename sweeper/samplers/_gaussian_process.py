"""The surrogate model of searches: a Gaussian process around a linear trend.

Rasmussen and Williams, "Gaussian processes for machine learning" (2006). Length scale and noise of
the squared-exponential kernel maximise the likelihood on a grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Floats

_LENGTH_SCALES = (0.7, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
"""Length scales tried, in thirds of the median distance between designs."""
_NOISES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
_FITTED = 250
"""Rows on which the likelihood is evaluated."""
_RIDGE = 1e-2


@dataclass(frozen=True)
class Surrogate:
    """A fitted model."""

    known: Floats
    trend: Floats
    weights: Floats
    inverse: Floats  # of the Cholesky factor of their covariance
    length_scale: float
    scale: float

    @classmethod
    def of(cls, features: Floats, values: Floats) -> Surrogate:
        """Fit values of designs, whose features are standardised."""
        base = _with_one(features)
        square = base.T @ base + _RIDGE * np.eye(base.shape[1])
        trend = np.asarray(np.linalg.solve(square, base.T @ values), np.float64)
        rest = values - base @ trend
        few = np.linspace(0, len(rest) - 1, min(_FITTED, len(rest))).astype(np.int64)
        distances = _squares(features[few], features[few])
        unit = np.sqrt(max(float(np.median(distances)), 1e-12))
        tried = [
            (
                _likelihood(distances, rest[few], length_scale * unit / 3.0, noise),
                length_scale * unit / 3.0,
                noise,
            )
            for length_scale in _LENGTH_SCALES
            for noise in _NOISES
        ]
        _, length_scale, noise = max(tried)
        covariance = np.exp(-_squares(features, features) / (2.0 * length_scale**2))
        inverse: Floats = np.linalg.inv(np.linalg.cholesky(covariance + noise * np.eye(len(rest))))
        part = inverse @ rest
        scale = float(part @ part) / len(rest)
        weights: Floats = inverse.T @ part
        return cls(features, trend, weights, inverse, length_scale, scale)

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Return the predicted values of designs and their standard deviations."""
        covariance = np.exp(-_squares(features, self.known) / (2.0 * self.length_scale**2))
        mean = _with_one(features) @ self.trend + covariance @ self.weights
        explained = ((covariance @ self.inverse.T) ** 2).sum(axis=1)
        return mean, np.sqrt(self.scale * np.maximum(1.0 - explained, 1e-9))


def _likelihood(distances: Floats, rest: Floats, length_scale: float, noise: float) -> float:
    """Return the log-likelihood of residuals, at the scale that maximises it."""
    factor = np.linalg.cholesky(
        np.exp(-distances / (2.0 * length_scale**2)) + noise * np.eye(len(rest))
    )
    part = np.linalg.solve(factor, rest)
    scale = float(part @ part) / len(rest) + 1e-300
    return -0.5 * len(rest) * float(np.log(scale)) - float(np.log(np.diag(factor)).sum())


def _squares(one: Floats, other: Floats) -> Floats:
    """Return the squared distance of each row of one matrix to each of the other."""
    sums = (one**2).sum(axis=1)[:, np.newaxis] + (other**2).sum(axis=1)
    squares: Floats = np.maximum(sums - 2.0 * one @ other.T, 0.0)
    return squares


def _with_one(features: Floats) -> Floats:
    return np.column_stack([np.ones(len(features)), features])


def standardised(columns: Floats) -> Floats:
    """Return the columns that vary with mean 0 and deviation 1, positive ones after a logarithm.

    Unknown values are placed above all others.
    """
    kept = []
    for raw in columns.T:
        known = np.isfinite(raw)
        if not known.any():
            continue
        column = np.where(known, raw, raw[known].max())
        if (column > 0.0).all():
            column = np.log(column)
        column = np.where(known, column, column.max() + 1.0)
        if (spread := float(column.std())) > 1e-9:
            kept.append((column - column.mean()) / spread)
    return np.stack(kept, axis=1) if kept else np.zeros((len(columns), 0))


def condensed(columns: Floats, share: float) -> Floats:
    """Return the principal components that explain a share of the variance, scaled to deviation."""
    if not columns.shape[1]:
        return columns
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    held = np.cumsum(sizes**2) / np.sum(sizes**2)
    count = int((held < share).sum()) + 1
    fewer: Floats = left[:, :count] * np.sqrt(len(columns))
    return fewer
