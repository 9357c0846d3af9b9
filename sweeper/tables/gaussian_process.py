"""A Gaussian process: what is not known of a function, from what is, with how sure that is.

Rasmussen and Williams, "Gaussian processes for machine learning" (2006): a linear trend, and beyond
it values that are alike where designs are. How far that reaches is chosen by likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Floats

_REACHES = (0.7, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
"""Distances tried, in standard deviations of all features together over their square root."""
_NOISES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
_FITTED, _WEIGHED = 250, 500
"""Rows of which the likelihood is looked at, and where features are weighed."""
_RIDGE = 1e-2
_FACTORS, _PASSES, _USUAL_NOISE = (0.0, 0.4, 2.5), 2, 1e-2
"""By what the weight of a feature is multiplied in a search of better ones, and how often."""


@dataclass(frozen=True)
class Surrogate:
    """What was learned: a trend, and the weights of known designs beyond it."""

    known: Floats
    trend: Floats
    weights: Floats
    inverse: Floats  # of the Cholesky factor of their covariance
    reach: float
    scale: float

    @classmethod
    def of(cls, features: Floats, values: Floats) -> Surrogate:
        """Learn values of designs, whose features have about the same spread each."""
        base = _with_one(features)
        square = base.T @ base + _RIDGE * np.eye(base.shape[1])
        trend = np.asarray(np.linalg.solve(square, base.T @ values), np.float64)
        rest = values - base @ trend
        few = np.linspace(0, len(rest) - 1, min(_FITTED, len(rest))).astype(np.int64)
        apart = _squares(features[few], features[few])
        unit = np.sqrt(max(float(np.median(apart)), 1e-12))
        tried = [
            (_likelihood(apart, rest[few], reach * unit / 3.0, noise), reach * unit / 3.0, noise)
            for reach in _REACHES
            for noise in _NOISES
        ]
        _, reach, noise = max(tried)
        alike = np.exp(-_squares(features, features) / (2.0 * reach**2))
        inverse: Floats = np.linalg.inv(np.linalg.cholesky(alike + noise * np.eye(len(rest))))
        part = inverse @ rest
        scale = float(part @ part) / len(rest)
        weights: Floats = inverse.T @ part
        return cls(features, trend, weights, inverse, reach, scale)

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Return the values expected of designs, and their standard deviations."""
        alike = np.exp(-_squares(features, self.known) / (2.0 * self.reach**2))
        mean = _with_one(features) @ self.trend + alike @ self.weights
        explained = ((alike @ self.inverse.T) ** 2).sum(axis=1)
        return mean, np.sqrt(self.scale * np.maximum(1.0 - explained, 1e-9))


def _likelihood(apart: Floats, rest: Floats, reach: float, noise: float) -> float:
    """Return the logarithm of the likelihood of values, at the scale that suits them best."""
    factor = np.linalg.cholesky(np.exp(-apart / (2.0 * reach**2)) + noise * np.eye(len(rest)))
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
    """Return the columns that differ, with mean 0 and deviation 1; unknown values lie above all.

    Those of positive values count by their logarithm.
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
    """Return fewer columns that hold a share of the variance of standardised ones."""
    if not columns.shape[1]:
        return columns
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    held = np.cumsum(sizes**2) / np.sum(sizes**2)
    count = int((held < share).sum()) + 1
    fewer: Floats = left[:, :count] * np.sqrt(len(columns))
    return fewer


def relevance(features: Floats, values: Floats) -> Floats:
    """Return how much each feature matters, by likelihood one after the other; 0: not at all.

    Multiplied by it, features that matter set designs apart and others do not.
    """
    few = np.linspace(0, len(values) - 1, min(_WEIGHED, len(values))).astype(np.int64)
    rest = values[few] - values.mean()
    squares = [_squares(column[:, np.newaxis], column[:, np.newaxis]) for column in features[few].T]
    weights = np.full(len(squares), 1.0 / np.sqrt(max(len(squares), 1)))
    apart = np.asarray(sum(s * w**2 for s, w in zip(squares, weights, strict=True)))
    best = _likelihood(apart, rest, 1.0, _USUAL_NOISE)
    for _ in range(_PASSES):
        for j, square in enumerate(squares):
            for tried in [weights[j] * factor for factor in _FACTORS]:
                other = apart + square * (tried**2 - weights[j] ** 2)
                likelihood = _likelihood(other, rest, 1.0, _USUAL_NOISE)
                if likelihood > best:
                    best, apart, weights[j] = likelihood, other, tried
    return weights
