"""Trivial entries: one number for a task, the nearest measured row, and the data sheet.

Each is fitted, per task, figure and split, to the rows that the split allows: rows measured before
the protocol's day for `later`, rows of the other GPUs or models for the unseen splits, and all
other subjects for `all`. Intervals hold 90 % of the errors among the fitted rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from lab.benchmark.protocol import ALL, SPLITS, BenchmarkSubject
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED

CONSTANT, NEAREST, SHEET = BASELINES = ("constant", "nearest", "data_sheet")
ABOUT = {
    CONSTANT: "the median of the task's fitted rows",
    NEAREST: "the measurement of the fitted row with the most similar configuration",
    SHEET: "the least time or energy by data sheets, times the median ratio of the fitted rows",
}

APART = 2.0
"""Distance of two configurations that differ in one name (GPU, model, engine or format), in octaves
of a size."""


@dataclass(frozen=True)
class FigureRows:
    """The rows of one figure of a task: arrays with an entry per row."""

    names: Sequence[str]
    measured: Floats
    lower_bound: Floats  # NaN where there is none
    octaves: Floats  # log2 of sizes, a row each
    kinds: np.ndarray  # names of the configuration, a row each


def predictions(
    task: str, rows: pl.DataFrame, subjects: Sequence[BenchmarkSubject], baseline: str
) -> Iterator[dict[str, object]]:
    """Yield the predictions of a baseline for the rows of a task, by split."""
    by_name = {one.row: one for one in subjects}
    for (figure,), mine in rows.group_by(["figure"], maintain_order=True):
        table = _figure_rows(mine, by_name)
        for split in SPLITS:
            tested = mine[split].to_numpy()
            if not tested.any() or (split != ALL and tested.all()):
                continue
            allowed = np.ones(tested.size, bool) if split == ALL else ~tested
            found = _predicted(table, allowed, baseline, alone=split == ALL)
            for at in np.flatnonzero(tested & np.isfinite(found[0])).tolist():
                prediction, low, high = (float(column[at]) for column in found)
                yield {
                    "task": task,
                    "row": table.names[at],
                    "figure": figure,
                    "split": split,
                    "prediction": prediction,
                    "low": low,
                    "high": high,
                }


def _figure_rows(rows: pl.DataFrame, by_name: dict[str, BenchmarkSubject]) -> FigureRows:
    subjects = [by_name[name] for name in rows["row"]]
    return FigureRows(
        names=rows["row"].to_list(),
        measured=rows["measured"].to_numpy(),
        lower_bound=rows["lower_bound"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        octaves=_octaves([one.sizes for one in subjects]),
        kinds=_padded([(one.gpu, one.model, *one.kinds) for one in subjects]),
    )


def _octaves(sizes: Sequence[tuple[float, ...]]) -> Floats:
    most = max(map(len, sizes))
    padded = [(*one, *(1.0,) * (most - len(one))) for one in sizes]
    return np.asarray(np.log2(np.maximum(padded, 1e-12)), np.float64)


def _padded(names: Sequence[tuple[str, ...]]) -> np.ndarray:
    most = max(map(len, names))
    return np.array([(*one, *("",) * (most - len(one))) for one in names])


def _predicted(
    rows: FigureRows, allowed: np.ndarray, baseline: str, *, alone: bool
) -> tuple[Floats, Floats, Floats]:
    """Return predictions and interval ends of all rows; `alone`: without the row itself."""
    log = np.log(rows.measured)
    if baseline == SHEET:
        ratio = log - np.log(rows.lower_bound)
        known = allowed & np.isfinite(ratio)
        if not known.any():
            return (np.full(log.size, np.nan),) * 3
        centre = np.log(rows.lower_bound) + np.median(ratio[known])
        errors = ratio[known] - np.median(ratio[known])
    elif baseline == CONSTANT:
        centre = np.full(log.size, np.median(log[allowed]))
        errors = log[allowed] - np.median(log[allowed])
    else:
        known = np.flatnonzero(allowed)
        centre = log[known[_nearest(rows, np.arange(log.size), known, itself=alone)]]
        others = log[known[_nearest(rows, known, known, itself=True)]]
        errors = log[known] - others
    low, high = np.quantile(errors, COVERED)
    middle = np.exp(centre)
    return middle, middle * np.exp(min(low, 0.0)), middle * np.exp(max(high, 0.0))


def _nearest(rows: FigureRows, asked: np.ndarray, known: np.ndarray, *, itself: bool) -> np.ndarray:
    """Return the position among `known` of the row nearest to each asked row.

    `itself`: whether asked rows are left out of their own neighbours.
    """
    octaves = np.square(rows.octaves[asked][:, None] - rows.octaves[known][None]).sum(axis=-1)
    differing = (rows.kinds[asked][:, None] != rows.kinds[known][None]).sum(axis=-1)
    distance = octaves + APART**2 * differing
    if itself:
        distance[asked[:, None] == known[None]] = np.inf
    return np.asarray(distance.argmin(axis=1))
