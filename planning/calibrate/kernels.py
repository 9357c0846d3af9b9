"""Few-shot fit of fp32 operators: three numbers per operator class, from as few as four rows.

Rates of other GPUs are the prior. A class is written only if its rows lower the error on held-out
rows; other classes keep the previous calibration.

`fit_named` is a robust least-squares fit on the logarithms of times: Levenberg-Marquardt with
iteratively reweighted least squares. The loss is quadratic for small residuals and linear beyond
`WIDTH`, so that the fit minimises about the mean absolute percentage error and is robust to
outliers. A ridge pulls each parameter towards its start, with the weight of a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from planning.calibrate.measurements import (
    Gain,
    TimedCalls,
    Timings,
    read_timings,
    relative_error,
    write_calibration,
)
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.evidence.default_rates import (
    band_of_gpus,
    errors_of,
    identity_of,
    measured_gpus,
    nearest_gpu,
    of_architecture,
)
from simulators.evidence.intervals import WIDEST, Band
from simulators.kernels.levels import measured_profile, scalar_files, zero_shot_profile
from simulators.kernels.price import call_seconds
from simulators.kernels.profile import GemmRates, Profile, ReductionRates, VectorRates

Rates = GemmRates | VectorRates | ReductionRates

OWN = Path("catalog") / "kernels"
"""Folder of a user's own calibrations."""
FEWEST, FOLDS = 4, 5
"""Fewest rows of a class for a held-out test, and folds of the cross-validation."""
LONGEST_DISPATCH_S = 1e-3
"""Upper limit: no framework takes a millisecond to call an empty kernel."""
LONG_S = 1e-3
"""Time beyond which a kernel runs many waves and determines sustained rates."""
FEW_SHOT_RIDGE = {"compute": 0.3, "bandwidth": 6.0, "dispatch_s": 6.0, "ramp_s": 6.0}
"""Ridge weight of each number: bandwidths and overheads vary less between GPUs than peaks do."""
FITTED_OF_PRODUCTS = ("compute", "bandwidth", "dispatch_s")


def calibrate_gpu(name: str, measured: Path) -> tuple[list[Gain], Path | None]:
    """Fit a GPU to timed operators.

    Returns:
        The errors before and after for each operator class, and the file that was written; None if
        no class improved.

    Raises:
        UserError: the file cannot be read or has too few rows, or the GPU is priced by its data
            sheet alone.
    """
    gpu = load_gpu(name)
    if not gpu.validated:
        raise UserError(
            f"{gpu.name} is priced by its data sheet alone (validated = false); no rows change that"
        )
    parts = [part for part in read_timings(measured) if len(part) >= FEWEST]
    if not parts:
        raise UserError(
            f"{measured}: no fp32 operator has {FEWEST} rows, the minimum for a held-out test"
        )
    file = OWN / f"{gpu.name}.toml"
    prior = zero_shot_profile(replace(identity_of(gpu), name=gpu.name))
    gains = [_gain(part, gpu, prior, file) for part in parts]
    better = [gain.name for gain in gains if gain.is_better]
    if not better:
        return gains, None
    _write(gpu, [part for part in parts if part.kernel in better], file, measured)
    return gains, file


def _gain(part: Timings, gpu: Gpu, prior: Profile, own: Path) -> Gain:
    """Return the gain of a class. `before` ignores the user's calibrations, which saw the rows."""
    identity = identity_of(gpu)
    files = [file for file in scalar_files(gpu.name, identity.name) if file != own]
    known_s = call_seconds(part.operator, gpu, measured_profile(identity, files))
    half = part.where(np.arange(len(part)) % 2 == 0)
    after = []
    for rows in (half, part):
        predicted_s = left_out_s(rows, gpu, prior)
        known = np.isfinite(predicted_s)
        after.append(relative_error(predicted_s[known], rows.seconds[known]))
    return Gain(part.kernel, len(part), relative_error(known_s, part.seconds), *after)


def _write(gpu: Gpu, parts: Sequence[Timings], file: Path, measured: Path) -> None:
    peers = [other for other in measured_gpus() if other.name != gpu.name]
    before = profile = zero_shot_profile(replace(identity_of(gpu), name=gpu.name), among=peers)
    bands: dict[str, Band] = {}
    errors: dict[str, float] = {}
    for part in parts:  # batched products first: their dispatch bounds that of single ones
        profile = fit_few(part, gpu, profile)
        predicted_s = left_out_s(part, gpu, before)
        known = np.isfinite(predicted_s)
        residuals = np.log(part.seconds[known] / predicted_s[known])
        bands[part.kernel] = band_by_rows(part.kernel, residuals, [other.name for other in peers])
        errors[part.kernel] = relative_error(predicted_s[known], part.seconds[known])
    same_vendor = [other for other in peers if other.vendor == gpu.vendor]
    similar = of_architecture(gpu.architecture, same_vendor) if same_vendor else []
    content: dict[str, Any] = {
        "level": "few_shot",
        "source": nearest_gpu(similar) if similar else "",
        "provenance": {"held_out_mape_of": errors},
        "bands": {n: {"lo": list(band.lo), "hi": list(band.hi)} for n, band in bands.items()},
    }
    for part in parts:
        rates = rates_of(profile, part.kernel)
        family = {GemmRates: "gemm", VectorRates: "vector", ReductionRates: "reduction"}
        content.setdefault(family[type(rates)], {})[part.kernel] = _numbers(rates)
    rows, error = sum(map(len, parts)), float(np.mean(list(errors.values())))
    write_calibration(file, content, measured, rows, "shapes left out in turn", error)


def _numbers(rates: Rates) -> dict[str, float]:
    names = [f.name for f in fields(rates) if f.name != "calibrated"]
    if isinstance(rates, GemmRates):
        names = list(FITTED_OF_PRODUCTS)
    return {name: float(getattr(rates, name)) for name in names}


def left_out_s(part: Timings, gpu: Gpu, base: Profile) -> Floats:
    """Return cross-validated seconds: each shape is predicted by a fit without the shape."""
    shapes = np.stack(list(part.sizes.values()), axis=1)
    fold = np.unique(shapes, axis=0, return_inverse=True)[1].reshape(-1) % FOLDS
    predicted_s = np.full(len(part), np.nan)
    for number in range(FOLDS):
        held_out = fold == number
        if held_out.any() and not held_out.all():
            profile = fit_few(part.where(~held_out), gpu, base)
            predicted_s[held_out] = call_seconds(part.where(held_out).operator, gpu, profile)
    return predicted_s


def fit_few(rows: TimedCalls, gpu: Gpu, base: Profile) -> Profile:
    """Return the profile `base` with three numbers of one class fitted to the rows."""
    rates = rates_of(base, rows.kernel)
    names = [name for name in FEW_SHOT_RIDGE if hasattr(rates, name)]
    start = np.log([getattr(rates, name) for name in names])
    high = np.array([0.0 if name in ("compute", "bandwidth") else np.inf for name in names])
    high = np.minimum(start + 2.0, high)  # no part of a rate exceeds the whole
    if "compute" in names:
        high[names.index("dispatch_s")] = longest_dispatch(rows, base)
    weights = rows.seconds / (rows.seconds + LONG_S)
    fitted = fit_named(
        lambda numbers: seconds_by(rows, gpu, base, numbers),
        names,
        np.minimum(start, high),
        rows.seconds,
        low=start - 2.0,
        high=high,
        ridge=np.array([FEW_SHOT_RIDGE[name] for name in names]),
        weights=weights / weights.mean(),
    )
    return replace(with_numbers(base, rows.kernel, fitted), level="few_shot")


def seconds_by(rows: TimedCalls, gpu: Gpu, base: Profile, numbers: dict[str, float]) -> Floats:
    """Return the seconds of the calls when some numbers of their class are replaced."""
    return call_seconds(rows.operator, gpu, with_numbers(base, rows.kernel, numbers))


def longest_dispatch(rows: TimedCalls, base: Profile) -> float:
    """Return the logarithm of the longest dispatch time of a class.

    The dispatch of a single product takes no longer than that of a batch of products, if measured.
    """
    batched = base.gemm["bmm"]
    if rows.kernel == "linear" and batched.calibrated:
        return float(np.log(batched.dispatch_s))
    return float(np.log(LONGEST_DISPATCH_S))


def rates_of(profile: Profile, label: str) -> Rates:
    """Return the rates of a class, or those of a similar class if the class has none yet."""
    if label in profile.gemm:
        return profile.gemm[label]
    if label in profile.reduction:
        return profile.reduction[label]
    similar = "binary" if label == "pow" else "unary"
    return profile.vector.get(label, profile.vector[similar])


def with_rates(profile: Profile, label: str, rates: Rates) -> Profile:
    """Return the profile with the rates of one class replaced."""
    if isinstance(rates, GemmRates):
        return replace(profile, gemm={**profile.gemm, label: rates})
    if isinstance(rates, ReductionRates):
        return replace(profile, reduction={**profile.reduction, label: rates})
    return replace(profile, vector={**profile.vector, label: rates})


def with_numbers(base: Profile, label: str, numbers: dict[str, float]) -> Profile:
    """Return the profile with some numbers of one class replaced."""
    more: dict[str, Any] = {**numbers, "calibrated": True}
    return with_rates(base, label, replace(rates_of(base, label), **more))


def band_by_rows(label: str, residuals: Floats, names: Sequence[str]) -> Band:
    """Return the 90 % prediction interval of an operator class on a GPU with a few measured rows.

    Args:
        label: the operator class.
        residuals: log of measured over predicted time, each row left out in turn.
        names: GPUs whose errors give the shape of the distribution.
    """
    if not (found := errors_of(names).get(label)):
        return WIDEST
    unit = unit_of(residuals, [float(errors["unit"]) for errors in found])
    return band_of_gpus([np.array(errors["rows"]) for errors in found], unit)


def unit_of(residuals: Floats, others: Sequence[float]) -> float:
    """Return the root mean square error of a GPU, with one more row of the error on other GPUs.

    >>> round(unit_of(np.array([0.1, -0.1, 0.1]), [0.2, 0.8]), 4)
    0.2179
    """
    usual = np.exp(2.0 * np.mean(np.log([*others])))
    return float(np.sqrt((np.sum(residuals**2) + usual) / (residuals.size + 1)))


Name = TypeVar("Name", bound=Hashable)

WIDTH = 0.01
"""Residuals below about 1 % count as noise: their loss is quadratic."""

STEP, LONGEST_STEP = 1e-4, 0.5
"""Step of the numerical derivative, and the longest step of a parameter; both of logarithms."""

STEPS = 40
"""Maximum number of iterations; a fit ends earlier if a step gains little."""


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
    """Return positive numbers by name, fitted to measured seconds as logarithms.

    Args:
        model: returns the predicted seconds for numbers by name.
        names: names of the numbers.
        start: logarithms of the initial numbers, and centre of the ridge.
        measured_s: measured seconds.
        low: lower bounds of the logarithms.
        high: upper bounds of the logarithms.
        ridge: weight of the start, in rows.
        weights: weights of the rows; equal by default.
    """
    target = np.log(measured_s)
    by_row = np.ones(measured_s.size) if weights is None else weights
    by_number = np.broadcast_to(ridge, start.shape)

    def named(p: Floats) -> dict[Name, float]:
        return dict(zip(names, np.exp(p).tolist(), strict=True))

    def residuals(p: Floats) -> Floats:
        return np.log(model(named(p))) - target

    def loss(p: Floats, r: Floats) -> float:
        rows = np.sum(by_row * (np.sqrt(r * r + WIDTH**2) - WIDTH))
        return float(rows + 0.5 * np.sum(by_number * (p - start) ** 2))

    p = np.clip(start, low, high)
    r = residuals(p)
    best, damping = loss(p, r), 1e-2
    for _ in range(STEPS):
        slopes = np.stack([(residuals(p + STEP * e) - r) / STEP for e in np.eye(p.size)], axis=1)
        row_weights = by_row / np.sqrt(r * r + WIDTH**2)
        curvature = slopes.T @ (row_weights[:, None] * slopes) + np.diag(by_number)
        gradient = slopes.T @ (row_weights * r) + by_number * (p - start)
        before = best
        for _ in range(8):
            damped = curvature + damping * np.diag(np.diag(curvature) + 1e-9)
            step = np.clip(-np.linalg.solve(damped, gradient), -LONGEST_STEP, LONGEST_STEP)
            trial = np.clip(p + step, low, high)
            trial_r = residuals(trial)
            if (found := loss(trial, trial_r)) < best:
                p, r, best, damping = trial, trial_r, found, max(damping / 5.0, 1e-6)
                break
            damping *= 4.0
        if before - best < 1e-5 * before:
            break
    return named(p)
