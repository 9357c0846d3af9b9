"""How sure we are of deployments on a GPU whose kernels nobody measured, each GPU in turn.

Kernels of the GPU are taken from others or from its data sheet, the constants of the engine from
deployments without the model on it; messages and clocks stay as measured. An interval that knows
the hardware holds nine of ten measured times; and of deadlines that are said to be met with 90 %,
nine of ten are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from lab.claims.lines import answered, at_least, error_line, within
from lab.claims.predicted_deployments import METRICS
from lab.fits.left_out import band_without, shelf_without
from lab.fits.steady_state import by_replica
from lab.tables.deployments import SILICON, PublicDeployment, silicon
from lab.tables.rows import evenly
from simulators.core.contract import Check
from simulators.serving.answer.error_bands import widened_by
from simulators.serving.deployment import Deployment, Hardware
from simulators.serving.measured_deployments import point_of
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.prices.iteration_table import Ends
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

NEEDS = (SILICON,)
LOADS = 6
"""Of one replica that are simulated, at most."""

SURE = 0.9
EDGE = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Unseen:
    """A deployment with what was predicted of it, its GPU's kernels unknown."""

    row: PublicDeployment
    ratio: Mapping[str, float]  # measured over predicted, by metric
    band: Mapping[str, Ends]

    def is_inside(self, metric: str) -> bool:
        """Say whether the measured time lies in the interval."""
        low, high = self.band[metric]
        return low <= self.ratio[metric] <= high

    def is_met(self, metric: str) -> bool:
        """Say whether a deadline is met of which we were just so sure."""
        low, high = (math.log(end) for end in self.band[metric])
        middle, sigma = (low + high) / 2.0, (high - low) / (2.0 * EDGE)
        return math.log(self.ratio[metric]) <= middle + NormalDist().inv_cdf(SURE) * sigma


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors, coverage and how often we are right when sure, over all GPUs and of each."""
    rows = [row for row in silicon(reference) if not row.excluded]
    found: list[Unseen] = []
    for indices in by_replica(rows).values():
        some = [rows[indices[i]] for i in evenly(len(indices), LOADS)]
        shelf = unmeasured(shelf_without(some[0].framework, some[0].group))
        known = answered("deployments, GPU unmeasured", some, functools.partial(unseen, shelf))
        yield from known.lines
        found += known.answers
    for metric in METRICS:
        for gpu in ("all", *sorted({one.row.gpu for one in found})):
            some_of = [one for one in found if gpu in ("all", one.row.gpu)]
            yield from _lines(metric, gpu, some_of)


def _lines(metric: str, gpu: str, found: list[Unseen]) -> Iterator[Check]:
    title = f"deployments {metric}, kernels of the GPU unmeasured, {gpu}"
    yield error_line(title, [100.0 * (1.0 / np.array([one.ratio[metric] for one in found]) - 1.0)])
    shares = {
        "within intervals": np.array([one.is_inside(metric) for one in found]),
        "deadlines met of those said to be 90 % sure": np.array([o.is_met(metric) for o in found]),
    }
    for words, held in shares.items():
        if gpu == "all":
            yield from within(f"{title}: {words}", [held])
        else:
            yield at_least(f"{title}: {words}", 100.0 * float(held.mean()), None, held.size)


def unmeasured(shelf: Shelf) -> Shelf:
    """Return what simulates as if no kernel of any GPU it is asked about had been measured."""
    known = shelf.deployment

    def deployment(point: object) -> Deployment:
        found = known(point)  # type: ignore[arg-type]
        hardware = found.hardware
        hidden = replace(hardware.replica, level="zero_shot")
        return replace(found, hardware=Hardware(f"{hardware.description} unmeasured", hidden))

    shelf.deployment = deployment
    return shelf


def unseen(shelf: Shelf, row: PublicDeployment) -> Unseen:
    """Return a deployment with its predictions and their bands.

    Raises:
        Infeasible: it cannot be built.
    """
    point = point_of(row)
    metrics = simulate(point, shelf)
    table, _ = prices_of(point, shelf.deployment(point).hardware)
    measured = {"TPOT": row.tpot_s, "TTFT": row.ttft_s}
    ours = {"TPOT": metrics.tpot_mean_s or math.nan, "TTFT": metrics.ttft_mean_s or math.nan}
    bands = {
        metric: widened_by(
            row.framework, metric.lower(), band_without(row.framework, row.group, metric.lower()),
            table.reach,
        )
        for metric in METRICS
    }  # fmt: skip
    return Unseen(row, {m: measured[m] / ours[m] for m in METRICS}, bands)
