"""Deployments measured in public with our predictions, each model on its GPU left out of all fits.

Beside ours stand aiconfigurator 0.12.0, the strongest peer, on the rows it answers, and the times
that the data sheet alone would give.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.claims.decisions import TPOT, TTFT
from lab.claims.lines import answered
from lab.fits.engines import least_s
from lab.fits.left_out import shelf_without
from lab.fits.steady_state import by_replica
from lab.tables.deployments import PublicDeployment, silicon
from lab.tables.rows import Bools
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.measured_deployments import point_of
from simulators.serving.simulator import simulate

METRICS = TPOT, TTFT


class Errors(NamedTuple):
    """How far predicted times are from measured ones, in percent."""

    mean: float
    median: float
    within_2x: float
    p90: float

    def __str__(self) -> str:
        return (
            f"{self.mean:.1f}/{self.median:.1f}, p90 {self.p90:.0f}, {self.within_2x:.0f} % "
            "within 2x"
        )


def errors_of(predicted: Floats, measured: Floats) -> Errors:
    """Return the errors of some rows; not numbers if there is none."""
    if not measured.size:
        return Errors(np.nan, np.nan, np.nan, np.nan)
    off = 100.0 * np.abs(predicted / measured - 1.0)
    near = 100.0 * np.mean(np.abs(np.log2(predicted / measured)) <= 1.0)
    p90 = float(np.percentile(off, 90.0))
    return Errors(float(off.mean()), float(np.median(off)), float(near), p90)


@dataclass(frozen=True)
class Predicted:
    """Measured rows with ours, the peer's and the data sheet's times; NaN where none is given."""

    rows: Sequence[PublicDeployment]
    measured: dict[str, Floats]  # by metric
    ours: dict[str, Floats]
    peer: dict[str, Floats]
    bound: dict[str, Floats]
    lines: Sequence[Check]  # about rows without ours

    def where(self, choose: Callable[[PublicDeployment], bool]) -> Bools:
        """Return which rows are chosen."""
        return np.array([choose(row) for row in self.rows], bool)

    @functools.cached_property
    def kept(self) -> Bools:
        """Which rows are held to limits."""
        return self.where(lambda row: not row.excluded)

    def errors(self, metric: str, which: Bools) -> tuple[Errors, Errors, str]:
        """Return our errors on some rows, the peer's where it answers, and both in words."""
        measured, peer = self.measured[metric][which], self.peer[metric][which]
        answers = ~np.isnan(peer)
        ours = errors_of(self.ours[metric][which], measured)
        theirs = errors_of(peer[answers], measured[answers])
        note = f"ours {ours}; {f'peer {theirs}' if answers.any() else 'peer answers none'}"
        if metric in self.bound:
            note += f"; data sheet {errors_of(self.bound[metric][which], measured)}"
        return ours, theirs, note


def group_of(row: PublicDeployment) -> str:
    """Return what is left out for a row: its model on its GPU."""
    return row.group


@functools.lru_cache(maxsize=1)
def predicted(reference: Path) -> Predicted:
    """Return the deployments with predictions, excluded rows too."""
    return predict(silicon(reference))


def predict(
    deployed: Sequence[PublicDeployment], left_out: Callable[[PublicDeployment], str] = group_of
) -> Predicted:
    """Return what the simulator says of deployments, their groups left out of its numbers."""
    shelf = functools.cache(shelf_without)

    def times_s(row: PublicDeployment) -> tuple[float, float]:
        """Per token, and to the first one."""
        metrics = simulate(point_of(row), shelf(row.runtime, left_out(row)))
        assert metrics.tpot_mean_s is not None
        assert metrics.ttft_mean_s is not None
        return metrics.tpot_mean_s, metrics.ttft_mean_s

    found = answered("deployments", deployed, times_s)
    rows, bound = found.rows, np.empty(len(found.rows))
    tpot_s, ttft_s = np.array(found.answers).reshape(-1, 2).T
    for indices in by_replica(rows).values():
        bound[indices] = least_s([rows[i] for i in indices])
    return Predicted(
        rows,
        {TPOT: _column(rows, "tpot_s"), TTFT: _column(rows, "ttft_s")},
        {TPOT: tpot_s, TTFT: ttft_s},
        {TPOT: _column(rows, "peer_tpot_s"), TTFT: _column(rows, "peer_ttft_s")},
        {TPOT: bound},
        found.lines,
    )


def _column(rows: Sequence[PublicDeployment], name: str) -> Floats:
    values = [getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], np.float64)
