"""Throughput per GPU against the best submissions to MLPerf Inference; nothing was fitted to them.

Offline, everything is queued. A server's rate is the highest at which 99 % of requests, arriving by
the clock, keep to the benchmark's times. Boards whose kernels were measured here stand apart from
those known by their data sheet alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, at_most, ratio_line
from lab.fits.left_out import shelf_without
from lab.tables.mlperf import OFFLINE, RUN_S, SCENARIOS, TABLES, Submission, mlperf
from simulators.core.contract import Check
from simulators.evidence.calibration_files import calibrations
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate

NEEDS = tuple(TABLES.values())
MEASURED, SHEET = "boards measured here", "data sheet alone"
LIMITS = {MEASURED: 12.0, SHEET: 30.0}
"""Of mean errors in percent."""

HALVINGS = 6
"""Of the interval in which a server's rate is sought: to a fiftieth of the offline rate."""

ROUTER = "least_outstanding"
MOST_REQUESTS = 60_000
"""Of a run: so many replicas share its load as that allows. Where requests are few and long, each
replica's share is far smoother than what arrives at one alone."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield mean errors of either kind of board in each scenario, then of each submission."""
    shelf = functools.cache(shelf_without)

    def rate(row: Submission) -> float:
        return tokens_per_gpu_s(row, shelf(row.point.runtime, row.group))

    found = answered("MLPerf", mlperf(reference), rate)
    yield from found.lines
    ratio = np.array(found.answers) / np.array([row.tokens_per_gpu_s for row in found.rows])
    measured = np.array([row.point.gpu in calibrations("tensor") for row in found.rows], bool)
    for scenario in SCENARIOS:
        which = np.array([row.scenario == scenario for row in found.rows], bool)
        for kind, boards in ((MEASURED, measured), (SHEET, ~measured)):
            name = f"MLPerf {scenario}, {kind}"
            yield ratio_line(name, ratio[which & boards], LIMITS[kind], "; best submissions")
    for row, ours in zip(found.rows, found.answers, strict=True):
        error = 100.0 * abs(ours / row.tokens_per_gpu_s - 1.0)
        name = f"MLPerf {row.scenario}, {row.point.model}, {row.name}"
        note = f"ours {ours:,.0f} of {row.tokens_per_gpu_s:,.0f} tokens per second and GPU"
        yield at_most(name, error, None, 1, note)


def tokens_per_gpu_s(row: Submission, shelf: RunCache) -> float:
    """Return our throughput per GPU: all that is possible, or all that keeps to the times."""
    point = row.point
    gpus = point.tp * point.pp * point.attention_dp
    most = simulate(point, shelf).tokens_per_s
    if row.scenario == OFFLINE:
        return most / gpus
    kept, missed = 0.0, most / row.task.output
    replicas = min(row.gpus // gpus, max(1, MOST_REQUESTS // point.requests))
    shared = replace(point, arrivals="poisson", replicas=replicas, router=ROUTER)
    for _ in range(HALVINGS):
        rate = (kept + missed) / 2.0
        requests = round(RUN_S * rate * replicas) or 1
        times = simulate(replace(shared, qps=rate * replicas, requests=requests), shelf)
        keeps_to = _within(times.ttft_p99_s, row.task.ttft_s)
        keeps_to = keeps_to and _within(times.tpot_p99_s, row.task.tpot_s)
        kept, missed = (rate, missed) if keeps_to else (kept, rate)
    return kept * row.task.output / gpus


def _within(seconds: float | None, limit: float) -> bool:
    return seconds is not None and seconds <= limit
