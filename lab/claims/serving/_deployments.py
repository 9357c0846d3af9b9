"""Deployments measured in public with our predictions, each model on its GPU left out of all fits.

Beside ours stand aiconfigurator 0.12.0, the strongest peer, on the rows it answers, and the times
that the data sheet alone would give.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.lines import evaluated
from lab.fits.engines import least_s
from lab.fits.left_out import shelf_without
from lab.fits.steady_state import by_replica
from lab.tables.deployments import PublicDeployment, silicon
from simulators.core.jit import Floats
from simulators.serving.measured_deployments import point_of
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

Flags = NDArray[np.bool_]

METRICS = TPOT, TTFT = "TPOT", "TTFT"
FEWEST = 4
"""Alternatives that make a decision, and rows that make a family."""


@dataclass(frozen=True)
class Predicted:
    """Measured rows with ours, the peer's and the data sheet's times; NaN where none is given."""

    rows: Sequence[PublicDeployment]
    measured: dict[str, Floats]  # by metric
    ours: dict[str, Floats]
    peer: dict[str, Floats]
    bound: dict[str, Floats]
    skipped: Counter[str]  # rows without ours, by the reason

    def where(self, choose: Callable[[PublicDeployment], bool]) -> Flags:
        """Return which rows are chosen."""
        return np.array([choose(row) for row in self.rows], bool)

    @functools.cached_property
    def kept(self) -> Flags:
        """Which rows are held to limits."""
        return self.where(lambda row: not row.excluded)


@functools.lru_cache(maxsize=2)
def predicted(reference: Path, rows: str) -> Predicted:
    """Return the deployments with predictions; excluded rows are simulated for `all` alone."""
    return predict([row for row in silicon(reference) if rows == "all" or not row.excluded])


def predict(rows: Sequence[PublicDeployment]) -> Predicted:
    """Return what the simulator says of deployments, their groups left out of its numbers.

    Those it says cannot be run are counted and left out.
    """
    skipped = Counter[str]()
    ours, bound = np.full((len(rows), 2), np.nan), np.full(len(rows), np.nan)
    for indices in by_replica(rows).values():
        of_replica = [rows[i] for i in indices]
        shelf = shelf_without(of_replica[0].framework, of_replica[0].group)
        answer = functools.partial(_simulated, of_replica, shelf)
        found = dict(evaluated(range(len(indices)), answer, skipped))
        if found:
            runs = [indices[at] for at in found]
            ours[runs] = list(found.values())
            bound[runs] = least_s([rows[i] for i in runs])
    kept = np.flatnonzero(~np.isnan(ours[:, 0])).tolist()
    rows, ours, bound = [rows[i] for i in kept], ours[kept], bound[kept]
    return Predicted(
        rows,
        {TPOT: _column(rows, "tpot_s"), TTFT: _column(rows, "ttft_s")},
        {TPOT: ours[:, 0], TTFT: ours[:, 1]},
        {TPOT: _column(rows, "peer_tpot_s"), TTFT: _column(rows, "peer_ttft_s")},
        {TPOT: bound},
        skipped,
    )


def _simulated(rows: Sequence[PublicDeployment], shelf: Shelf, at: int) -> tuple[float, float]:
    """Return the times per and to the first token of one of the rows."""
    metrics = simulate(point_of(rows[at]), shelf)
    assert metrics.tpot_mean_s is not None
    assert metrics.ttft_mean_s is not None
    return metrics.tpot_mean_s, metrics.ttft_mean_s


def _column(rows: Sequence[PublicDeployment], name: str) -> Floats:
    values = [getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], np.float64)


def summary(predicted: Floats, measured: Floats) -> tuple[float, float, float, float]:
    """Return mean, median, share within 2x and 90th percentile of the error, in percent."""
    if not measured.size:
        return (np.nan,) * 4
    error = 100.0 * np.abs(predicted / measured - 1.0)
    within = 100.0 * np.mean(np.abs(np.log2(predicted / measured)) <= 1.0)
    return (
        float(error.mean()),
        float(np.median(error)),
        float(within),
        float(np.percentile(error, 90.0)),
    )


def text(summary: tuple[float, float, float, float]) -> str:
    """Return a summary in words."""
    mean, median, within, p90 = summary
    return f"{mean:.1f}/{median:.1f}, p90 {p90:.0f}, {within:.0f} % within 2x"
