"""Times to the first and per later token of deployments measured in public, over kinds of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.decisions import TPOT, TTFT
from lab.claims.lines import absent, at_least, at_most, within
from lab.claims.pairs import kind_pairs, pair_lines
from lab.claims.predicted_deployments import METRICS, Predicted, predict, predicted
from lab.fits.left_out import width_without
from lab.fits.steady_state import by_replica, deployed_replica
from lab.tables.deployments import SILICON
from lab.tables.rows import Bools, evenly
from simulators.composition.replica import FRAMEWORKS, load_runtime
from simulators.core.contract import Check
from simulators.serving.prices.iteration_table import everyday_reach

NEEDS = (SILICON,)
ALLOWED = (85.0, 94.0)
"""Percent of measured times within 90 % intervals."""

PRINTED = (TPOT, "mean"), (TTFT, "mean"), (TTFT, "median")
"""Of all kinds of rows."""

LOADS = 6
"""Of one replica that are simulated with its model left out, at most."""

LIMITS = {
    ("TPOT", "mean", "all"): 15.0,
    ("TPOT", "median", "all"): 11.0,
    ("TPOT", "mean", "dense"): 13.0,
    ("TPOT", "mean", "h100_sxm, peer's rows"): 9.0,
    ("TTFT", "median", "all"): 24.0,
    ("TTFT", "mean", "all"): 36.0,
    ("TTFT", "within 2x", "all"): 88.0,
    ("TPOT", "mean", "model left out"): 11.0,
    ("TTFT", "median", "model left out"): 24.0,
}
"""In percent; the share within a factor of two is at least, errors are at most."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of ours and the peer's over all rows and over kinds of rows."""
    found = predicted(reference)
    yield from found.lines
    if not found.kept.any():
        yield absent("deployments", f"{SILICON} has no row that is kept")
        return
    for kind, which in _kinds(found).items():
        if which.any():
            yield from _errors(found, which, kind)
    yield from _errors(found, np.ones(found.kept.size, bool), "with excluded rows")
    yield from _precisions(found)
    yield from _coverage(found)
    yield from _without_model(found)


def _precisions(found: Predicted) -> Iterator[Check]:
    """Yield what becomes of tokens a second where one deployment was measured in two precisions."""
    rows = [row for row, kept in zip(found.rows, found.kept, strict=True) if kept]
    alike = [
        (row.model, row.gpu, row.framework, row.cut, row.clients, row.prompt, row.output)
        for row in rows
    ]
    ours, theirs = kind_pairs(
        alike,
        [row.family[3] for row in rows],
        1.0 / found.ours[TPOT][found.kept],
        1.0 / found.measured[TPOT][found.kept],
    )
    yield from pair_lines("deployments in two precisions", ours, theirs, "by time per token")


def _coverage(found: Predicted) -> Iterator[Check]:
    """Yield how many measured times lie within our 90 % intervals, of both metrics.

    Intervals are as wide as deployments on other GPUs show.
    """
    ends = np.empty((len(METRICS), len(found.rows), 2))
    for indices in by_replica(found.rows).values():
        row = found.rows[indices[0]]
        reach = everyday_reach(deployed_replica(row, load_runtime(row.runtime)))
        for bands, metric in zip(ends, map(str.lower, METRICS), strict=True):
            width = width_without(row.gpu, row.framework, metric)
            bands[indices] = width.band(reach[metric])
    for metric, bands in zip(METRICS, ends, strict=True):
        low, high = bands[found.kept].T
        ratio = (found.measured[metric] / found.ours[metric])[found.kept]
        inside = (low <= ratio) & (ratio <= high)
        yield from within(f"deployments {metric} within intervals", [inside], allowed=ALLOWED)


def _without_model(found: Predicted) -> Iterator[Check]:
    """Yield the errors with a model left out on all GPUs, on some loads of each replica."""
    kept = [row for row in found.rows if not row.excluded]
    some = [kept[rows[i]] for rows in by_replica(kept).values() for i in evenly(len(rows), LOADS)]
    strict = predict(some, lambda row: row.model)
    yield from _errors(strict, strict.kept, "model left out")


def _kinds(found: Predicted) -> dict[str, Bools]:
    """Return the rows of each kind."""
    kept, answered = found.kept, ~np.isnan(found.peer[TPOT])
    dense = found.where(lambda row: row.is_dense)
    gpu = np.array([row.gpu for row in found.rows])
    framework = np.array([row.framework for row in found.rows])
    kinds = {"all": kept, "peer's rows": kept & answered, "dense": kept & dense}
    kinds["experts"] = kept & ~dense
    for name in np.unique(gpu).tolist():
        here = kept & (gpu == name)
        kinds |= {name: here, f"{name}, peer's rows": here & answered}
    return kinds | {name: kept & (framework == name) for name in FRAMEWORKS}


def _errors(found: Predicted, which: Bools, kind: str) -> Iterator[Check]:
    """Yield mean, median and share within 2x of both metrics on some rows."""
    for metric in METRICS:
        ours, theirs, note = found.errors(metric, which)
        for value, peer, name in zip(ours, theirs, ("mean", "median", "within 2x"), strict=False):
            limit = LIMITS.get((metric, name, kind))
            if (metric, name) in PRINTED or limit is not None:
                line = at_least if name == "within 2x" else at_most
                title = f"deployments {metric} {name}, {kind}"
                yield line(title, value, limit, int(which.sum()), note, peer=peer)
