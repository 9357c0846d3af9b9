"""Robust least squares on the logarithms of times.

Levenberg-Marquardt with iteratively reweighted least squares: the loss is quadratic for small
residuals and linear beyond `WIDTH`, so that the fit minimises about the mean absolute percentage
error and is robust to outliers. A ridge pulls each parameter to its start, with the weight of a few
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from simulators.core.jit import Floats

Name = TypeVar("Name", bound=Hashable)

WIDTH = 0.01
"""Residuals below about 1 % count as noise: squared."""

STEP, LONGEST_STEP = 1e-4, 0.5
"""Step of the numerical derivative, and the longest move; parameters are logarithms."""

STEPS = 40
"""Most iterations; a fit ends earlier if a step gains little."""


def fit_log(
    model: Callable[[Floats], Floats],
    start: Floats,
    measured_s: Floats,
    *,
    weights: Floats,
    ridge: Floats,
    bounds: tuple[Floats, Floats],
) -> Floats:
    """Return the parameters with the least loss between `log model(p)` and `log measured_s`."""
    target = np.log(measured_s)

    def residuals(p: Floats) -> Floats:
        return np.log(model(p)) - target

    def loss(p: Floats, r: Floats) -> float:
        rows = np.sum(weights * (np.sqrt(r * r + WIDTH**2) - WIDTH))
        return float(rows + 0.5 * np.sum(ridge * (p - start) ** 2))

    p = np.clip(start, *bounds)
    r = residuals(p)
    best, damping = loss(p, r), 1e-2
    for _ in range(STEPS):
        slopes = np.stack([(residuals(p + STEP * e) - r) / STEP for e in np.eye(p.size)], axis=1)
        pull = weights / np.sqrt(r * r + WIDTH**2)
        curvature = slopes.T @ (pull[:, None] * slopes) + np.diag(ridge)
        gradient = slopes.T @ (pull * r) + ridge * (p - start)
        before = best
        for _ in range(8):
            damped = curvature + damping * np.diag(np.diag(curvature) + 1e-9)
            move = np.clip(-np.linalg.solve(damped, gradient), -LONGEST_STEP, LONGEST_STEP)
            trial = np.clip(p + move, *bounds)
            trial_r = residuals(trial)
            if (found := loss(trial, trial_r)) < best:
                p, r, best, damping = trial, trial_r, found, max(damping / 5.0, 1e-6)
                break
            damping *= 4.0
        if before - best < 1e-5 * before:
            break
    return p


def fit_named(
    model: Callable[[dict[Name, float]], Floats],
    names: Sequence[Name],
    start: Floats,
    measured_s: Floats,
    *,
    low: Floats,
    high: Floats,
    ridge: float | Floats,
    weights: Floats | None = None,
) -> dict[Name, float]:
    """Return positive numbers by their names, fitted as logarithms.

    Args:
        model: seconds by these numbers.
        names: of the numbers.
        start: logarithms of the initial numbers, and centre of the ridge.
        measured_s: measured seconds.
        low: least logarithms.
        high: largest logarithms.
        ridge: weight of the start, in rows.
        weights: of the rows; equal by default.
    """

    def named(p: Floats) -> dict[Name, float]:
        return dict(zip(names, np.exp(p).tolist(), strict=True))

    fitted = fit_log(
        lambda p: model(named(p)),
        start,
        measured_s,
        weights=np.ones(measured_s.size) if weights is None else weights,
        ridge=np.broadcast_to(ridge, start.shape),
        bounds=(low, high),
    )
    return named(fitted)
