"""Fit the losses between the best mapping and silicon to published chips.

Log errors of time, energy and area are least squares with priors: a design's own factor is shrunk
towards that of all designs. Areas are fitted first, then times, then energies, which need both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import least_squares

from lab.fits.accelerators.chip_runs import FILE, ChipArea, ChipRun, published_areas, published_runs
from lab.fits.driver import Calibration, declared, settings
from simulators.core.jit import Floats
from simulators.dataflow.silicon import Losses, Silicon

CONFIG = settings(__file__)
NO_SPREAD = (0.0, 0.0)

One = TypeVar("One", ChipRun, ChipArea)


@dataclass(frozen=True)
class LeftOut:
    """The prediction of one quantity for a chip that no factor was fitted to."""

    quantity: str
    label: str
    chip: str
    design: str
    predicted: float
    measured: float

    @property
    def log_error(self) -> float:
        """Logarithm of predicted over measured."""
        return float(np.log(self.predicted / self.measured))


def fitted(runs: Sequence[ChipRun], areas: Sequence[ChipArea]) -> Silicon:
    """Return the factors of some runs and areas, without spreads."""
    area = _area(areas)
    time, start_s = _time(runs)
    silicon = Silicon(time, time, area, start_s, CONFIG.overlap)
    return replace(silicon, energy=_energy(runs, silicon))


def latency_s(run: ChipRun, silicon: Silicon) -> float:
    """Return the predicted time of one inference."""
    return silicon.latency_s(run.work, run.clock_hz, run.design) / run.inferences


def energy_j(run: ChipRun, silicon: Silicon) -> float:
    """Return the predicted energy of one inference on the chip."""
    mm2 = 0.0 if run.is_above_idle else run.plain_mm2 * silicon.area.factor(run.design)
    time_s = silicon.latency_s(run.work, run.clock_hz, run.design)
    whole_j = silicon.energy_j(run.work, mm2, time_s, run.design, run.energy_scale)
    return whole_j / run.inferences


def left_out(by: str) -> list[LeftOut]:
    """Return predictions of all rows: of each, the factors are fitted without its group.

    `by` is the group: label (the row alone), chip or design.
    """
    runs, areas, found = published_runs(), published_areas(), []
    groups = dict.fromkeys([getattr(run, by) for run in runs])
    if by != "label":
        groups |= dict.fromkeys(getattr(area, by) for area in areas)
    for group in groups:
        kept = [run for run in runs if getattr(run, by) != group]
        known = areas if by == "label" else [a for a in areas if getattr(a, by) != group]
        silicon = fitted(kept, known)
        found += [
            prediction
            for run in runs
            if getattr(run, by) == group
            for prediction in _predictions(run, silicon)
        ]
        if by != "label":
            found += [
                LeftOut("area", area.chip, area.chip, area.design, whole, area.mm2)
                for area in areas
                if getattr(area, by) == group
                for whole in [area.plain_mm2 * silicon.area.factor(area.design)]
            ]
    return found


def _predictions(run: ChipRun, silicon: Silicon) -> Iterator[LeftOut]:
    named = (run.label, run.chip, run.design)
    yield LeftOut("time", *named, latency_s(run, silicon), run.latency_s)
    if run.energy_j is not None:
        yield LeftOut("energy", *named, energy_j(run, silicon), run.energy_j)


def spread(errors: Iterable[LeftOut], quantity: str) -> float:
    """Return the root mean square of log errors of a quantity, each design with equal weight."""
    by_design: dict[str, list[float]] = {}
    for one in errors:
        if one.quantity == quantity:
            by_design.setdefault(one.design, []).append(one.log_error**2)
    return float(np.sqrt(np.mean([np.mean(some) for some in by_design.values()])))


def fit_silicon(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the factors of all chips, with the spreads of chips that are left out.

    The table of chips is part of the package: nothing is read from the reference folder.
    """
    del reference
    silicon = fitted(published_runs(), published_areas())
    known, new = [*left_out("label"), *left_out("chip")], left_out("design")
    content: dict[str, Any] = {}
    for name in ("time", "energy", "area"):
        quantity: Losses = getattr(silicon, name)
        content[name] = {
            "shared": quantity.shared,
            "other": quantity.other,
            "spread": spread(_known(known, name), name),
            "new_spread": spread(new, name),
            "designs": dict(quantity.designs),
        }
    content["time"] |= {"start_s": silicon.start_s, "overlap": silicon.overlap}
    chips = left_out("chip")
    yield declared(
        "silicon",
        tables=[FILE],
        content=content,
        rows=len(published_runs()) + len(published_areas()),
        errors=np.array([one.predicted / one.measured - 1.0 for one in chips]),
    )


def _known(errors: Iterable[LeftOut], quantity: str) -> list[LeftOut]:
    """Return the errors of rows of whose design other rows were fitted."""
    several = {
        row.design
        for row in (published_areas() if quantity == "area" else published_runs())
        if _others(row)
    }
    return [one for one in errors if one.design in several]


def _others(row: ChipRun | ChipArea) -> bool:
    table: Sequence[ChipRun | ChipArea]
    table = published_runs() if isinstance(row, ChipRun) else published_areas()
    return sum(other.design == row.design for other in table) > 1


def _time(runs: Sequence[ChipRun]) -> tuple[Losses, float]:
    def quantity(x: Floats, designs: dict[str, float]) -> Silicon:
        time = Losses(float(np.exp(x[0])), float(np.exp(x[1])), designs, *NO_SPREAD)
        start_s = float(CONFIG.start_s * np.exp(x[2]))
        return Silicon(time, time, time, start_s, CONFIG.overlap)

    def errors(x: Floats, designs: dict[str, float]) -> list[float]:
        silicon = quantity(x, designs)
        found = [float(np.log(latency_s(run, silicon) / run.latency_s)) for run in runs]
        return [*(e / CONFIG.run for e in found), x[1] / CONFIG.memory, x[2] / CONFIG.start]

    x, designs = _solved(errors, np.zeros(3), runs)
    silicon = quantity(x, designs)
    return silicon.time, silicon.start_s


def _energy(runs: Sequence[ChipRun], silicon: Silicon) -> Losses:
    metered = [run for run in runs if run.energy_j is not None]

    def quantity(x: Floats, designs: dict[str, float]) -> Losses:
        standing = CONFIG.standing_w_per_mm2 * np.exp(x[1])
        return Losses(float(np.exp(x[0])), float(standing), designs, *NO_SPREAD)

    def errors(x: Floats, designs: dict[str, float]) -> list[float]:
        priced = replace(silicon, energy=quantity(x, designs))
        found = [float(np.log(energy_j(run, priced) / (run.energy_j or 1.0))) for run in metered]
        return [*(e / CONFIG.run for e in found), x[0] / CONFIG.dynamic, x[1] / CONFIG.standing]

    return quantity(*_solved(errors, np.zeros(2), metered))


def _area(areas: Sequence[ChipArea]) -> Losses:
    def quantity(x: Floats, designs: dict[str, float]) -> Losses:
        return Losses(float(np.exp(x[0])), 0.0, designs, *NO_SPREAD)

    def errors(x: Floats, designs: dict[str, float]) -> list[float]:
        factor = quantity(x, designs).factor
        return [
            float(np.log(one.plain_mm2 * factor(one.design) / one.mm2)) / CONFIG.run
            for one in areas
        ]

    return quantity(*_solved(errors, np.ones(1), areas))


def _solved(
    errors: Callable[[Floats, dict[str, float]], list[float]], start: Floats, rows: Sequence[One]
) -> tuple[Floats, dict[str, float]]:
    """Return the least squares of `errors` plus priors, and the factor of each design."""
    names = list(dict.fromkeys(row.design for row in rows))

    def residuals(x: Floats) -> Floats:
        own: Floats = x[start.size :]
        designs: dict[str, float] = dict(zip(names, np.exp(own).tolist(), strict=True))
        return np.array([*errors(x[: start.size], designs), *(own / CONFIG.design)])

    x = least_squares(residuals, np.concatenate([start, np.zeros(len(names))])).x
    return x[: start.size], dict(zip(names, np.exp(x[start.size :]).tolist(), strict=True))
