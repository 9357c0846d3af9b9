"""Throughput with everything queued at once, static batches and MLPerf, against what is published.

Of groups (a model on a GPU) that the runtimes were fitted to, the numbers without the group are
used. Nothing was fitted to offline runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.tables.offline import MLPERF, OFFLINE, mlperf, offline, predict
from lab.tables.static_batches import STATIC, predicted_s, static_rows
from simulators.catalog.model import load_model
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

OFFLINE_LIMITS = {"dense": 14.0, "experts": 25.0}
STATIC_LIMITS = {"dense": 11.0}
"""Mean errors in percent."""


def offline_checks(reference: Path) -> Iterator[Check]:
    """Yield the errors of throughput; what is absent from the reference folder is said to be."""
    for table, checks in (
        (OFFLINE, _offline_checks),
        (STATIC, _static_checks),
        (MLPERF, _mlperf_checks),
    ):
        if (reference / table).is_file():
            yield from checks(reference)
        else:
            yield Check(name=f"offline, {table}", value=None, note="absent")


def _offline_checks(reference: Path) -> Iterator[Check]:
    rows = offline(reference)
    ours = np.array([np.nan if one is None else one for one in predict(rows)])
    ratio = ours / np.array([row.tokens_per_s for row in rows])
    dense = np.array([row.is_dense for row in rows])
    for kind, which in (("dense", dense), ("experts", ~dense)):
        refused = f", {np.isnan(ratio[which]).sum()} not runnable by our account"
        yield mean_error(f"offline throughput, {kind}", ratio[which], OFFLINE_LIMITS[kind], refused)


def _static_checks(reference: Path) -> Iterator[Check]:
    rows = static_rows(reference)
    ratio = np.array([row.measured_s for row in rows]) / predicted_s(rows)
    dense = np.array([load_model(row.model).experts == 0 for row in rows])
    for kind, which in (("dense", dense), ("experts", ~dense)):
        yield mean_error(f"static batches, {kind}", ratio[which], STATIC_LIMITS.get(kind))


def _mlperf_checks(reference: Path) -> Iterator[Check]:
    shelf = Shelf()
    for row in mlperf(reference):
        ours = simulate(row.point, shelf).tokens_per_s / row.point.tp
        theirs = row.tokens_per_s / row.gpus
        yield Check(
            name=f"MLPerf {row.scenario}, {row.point.gpu}",
            value=100.0 * abs(ours / theirs - 1.0),
            unit="%",
            rows=1,
            note=f"ours offline {ours:,.0f} of {theirs:,.0f} tokens per second and GPU, {row.name}",
        )


def mean_error(name: str, ratio: Floats, limit: float | None = None, note: str = "") -> Check:
    """Return the mean error in percent, given ours over theirs, NaN where we have no answer."""
    known = ratio[~np.isnan(ratio)]
    if not known.size:
        return Check(name=name, value=None, note="no rows")
    error = 100.0 * np.abs(known - 1.0)
    mean = float(error.mean())
    bias = 100.0 * (np.median(known) - 1.0)
    return Check(
        name=name,
        value=mean,
        unit="%",
        limit=limit,
        ok=None if limit is None else mean <= limit,
        rows=known.size,
        note=f"median {np.median(error):.1f}, bias {bias:+.1f} %{note}",
    )
