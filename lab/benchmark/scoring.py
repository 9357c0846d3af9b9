"""Scores of entries: errors, intervals, ranks on common rows, and signs of copied measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from lab.benchmark.entries import BenchmarkEntry
from lab.benchmark.protocol import PROTOCOL, SPLITS
from simulators.core.jit import Floats

MISS = 2.0 / 0.1
"""Cost of a measurement outside a 90 % interval, per unit of distance.

Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation" (2007), eq. 43.
"""


@dataclass(frozen=True, kw_only=True)
class BenchmarkScore:
    """Scores of one entry on one figure of a task and split; errors in percent.

    `log_error` is the mean of |ln(predicted / measured)|. `coverage` is the share of measurements
    within the 90 % intervals, in percent; `log_width` the median of ln(high / low);
    `interval_score` the mean width plus twenty times the distance of measurements outside, in
    logarithms. `rank` is among entries that have not seen the rows, on their common rows.
    """

    task: str
    split: str
    figure: str
    entry: str
    rows: int
    answered: int
    median: float | None = None
    mean: float | None = None
    bias: float | None = None
    within_2x: float | None = None
    log_error: float | None = None
    coverage: float | None = None
    log_width: float | None = None
    interval_score: float | None = None
    has_seen: bool = False
    rank: int | None = None
    common_rows: int | None = None
    common_log_error: float | None = None
    suspicion: str = ""


def scores(rows: pl.DataFrame, entries: Sequence[BenchmarkEntry]) -> Iterator[BenchmarkScore]:
    """Yield the scores of all entries on each task, split and figure with rows enough."""
    for (task, figure), mine in rows.group_by(["task", "figure"], maintain_order=True):
        for split in SPLITS:
            judged = mine.filter(pl.col(split))
            is_repeated = split != SPLITS[0] and judged.height == mine.height
            if judged.height >= PROTOCOL.least_rows and not is_repeated:
                yield from _of_split(str(task), str(figure), split, judged, entries)


def _of_split(
    task: str, figure: str, split: str, judged: pl.DataFrame, entries: Sequence[BenchmarkEntry]
) -> Iterator[BenchmarkScore]:
    measured = judged["measured"].to_numpy()
    gpus, models = judged["gpu"].unique().to_list(), judged["model"].unique().to_list()
    errors: dict[str, Floats] = {}
    found: dict[str, BenchmarkScore] = {}
    for entry in entries:
        table = entry.of(task, split).filter(pl.col("figure") == figure)
        aligned = judged.select("row").join(table, on="row", how="left", maintain_order="left")
        predicted, low, high = (
            aligned[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
            for name in ("prediction", "low", "high")
        )
        log = np.log(predicted / measured)
        if np.isnan(log).all():
            continue
        errors[entry.name] = log
        found[entry.name] = BenchmarkScore(
            task=task,
            split=split,
            figure=figure,
            entry=entry.name,
            rows=judged.height,
            has_seen=entry.has_seen(task, split, gpus, models),
            suspicion=suspicion(log[~np.isnan(log)]),
            **_statistics(log),
            **_interval_statistics(measured, low, high),
        )
    ranks = ranking({name: errors[name] for name, one in found.items() if not one.has_seen})
    for name, one in found.items():
        yield BenchmarkScore(**(asdict(one) | ranks.get(name, {})))


def _statistics(log: Floats) -> dict[str, Any]:
    known = log[~np.isnan(log)]
    relative = 100.0 * np.expm1(known)
    return {
        "answered": known.size,
        "median": float(np.median(np.abs(relative))),
        "mean": float(np.mean(np.abs(relative))),
        "bias": float(np.median(relative)),
        "within_2x": float(100.0 * np.mean(np.abs(known) <= math.log(2.0))),
        "log_error": float(np.mean(np.abs(known))),
    }


def _interval_statistics(measured: Floats, low: Floats, high: Floats) -> dict[str, Any]:
    known = ~(np.isnan(low) | np.isnan(high)) & (low > 0.0)
    if not known.any():
        return {}
    at, below, above = (np.log(column[known]) for column in (measured, low, high))
    outside = np.maximum(below - at, 0.0) + np.maximum(at - above, 0.0)
    return {
        "coverage": float(100.0 * np.mean(outside == 0.0)),
        "log_width": float(np.median(above - below)),
        "interval_score": float(np.mean(above - below + MISS * outside)),
    }


def ranking(errors: Mapping[str, Floats]) -> dict[str, dict[str, float | int]]:
    """Return rank, common rows and mean |log error| on them, of entries that answer enough rows.

    Entries are taken in the order of how many rows they answer, as long as their common rows are
    enough; the others are not ranked.

    >>> far, near = np.full(20, 0.2), np.full(20, 0.1)
    >>> few = np.where(np.arange(20) < 3, 0.0, np.nan)
    >>> {name: one["rank"] for name, one in ranking({"a": far, "b": near, "c": few}).items()}
    {'b': 1, 'a': 2}
    """
    chosen: dict[str, Floats] = {}
    common = None
    for name in sorted(errors, key=lambda one: int(np.isnan(errors[one]).sum())):
        there = ~np.isnan(errors[name])
        both = there if common is None else common & there
        if both.sum() >= PROTOCOL.least_rows:
            common, chosen[name] = both, errors[name]
    if common is None:
        return {}
    size = {name: float(np.mean(np.abs(log[common]))) for name, log in chosen.items()}
    return {
        name: {"rank": rank, "common_rows": int(common.sum()), "common_log_error": size[name]}
        for rank, name in enumerate(sorted(size, key=lambda one: size[one]), start=1)
    }


def suspicion(log: Floats) -> str:
    """Return why predictions look like copies of the measurements; empty if they do not.

    `log`: ln(predicted / measured). A predictor's errors have a density, so that a tenth of the
    errors below a small bound are below a tenth of the bound.

    >>> suspicion(np.zeros(40)), suspicion(np.full(40, 0.3)), suspicion(np.linspace(-0.2, 0.2, 40))
    ('100 % of the rows are exact', 'all ratios are x1.350', '')
    """
    if log.size < PROTOCOL.least_rows:
        return ""
    exact = float(np.mean(np.abs(log) < PROTOCOL.exact))
    near = float(np.mean(np.abs(log) < 10.0 * PROTOCOL.exact))
    noise = 3.0 / math.sqrt(log.size)
    if exact > PROTOCOL.exact_share or exact > near / 10.0 + noise:
        return f"{100.0 * exact:.0f} % of the rows are exact"
    middle = float(np.median(log))
    if np.max(np.abs(log - middle)) < PROTOCOL.one_ratio:
        return f"all ratios are x{math.exp(middle):.3f}"
    return ""
