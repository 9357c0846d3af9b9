"""Throughput and latencies of TensorRT-LLM as NVIDIA publishes them.

Offline, everything is queued at once; of groups (a model on a GPU) that the runtimes were fitted
to, the numbers without it are used. Online, requests arrive by the clock: runs of release 0.14, two
years older than most that were fitted, of which the time to hand over a request was fitted to the
other model's. Releases before 1.0 have the runtime of static batches of 2023 and 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, ratio_line
from lab.claims.pairs import kind_pairs, pair_lines
from lab.fits.left_out import asked_without, shelf_without
from lab.tables.published_runs import (
    OFFLINE,
    ONLINE,
    PublishedRun,
    offline,
    online,
)
from simulators.core.contract import Check
from simulators.core.errors import Infeasible
from simulators.serving.simulator import simulate

NEEDS = (OFFLINE, ONLINE)
LIMITS = {"dense": 9.0, "experts": 15.0}
"""Of mean errors in percent, offline."""

ONLINE_LIMITS = {"TTFT": 36.0, "TPOT": 15.0, "throughput": 14.0}
"""Of the same, of requests by the clock: as of deployments in a closed loop, and of dense models
offline."""

RELEASE = "; TensorRT-LLM 0.14, bf16, requests by the clock"


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors offline, of dense models and of mixtures; then online, around saturation."""
    yield from _offline(reference)
    yield from _online(reference)


def _offline(reference: Path) -> Iterator[Check]:
    shelf = functools.cache(shelf_without)

    def tokens_per_s(run: PublishedRun) -> float:
        """Our throughput; not a number where we say that it cannot be run."""
        try:
            return simulate(run.point, shelf(run.point.runtime, run.group)).tokens_per_s
        except Infeasible:
            return np.nan

    found = answered("offline throughput", offline(reference), tokens_per_s)
    yield from found.lines
    ratio = np.array(found.answers) / np.array([run.tokens_per_s for run in found.rows])
    dense = np.array([run.is_dense for run in found.rows], bool)
    for kind, which in (("dense", dense), ("experts", ~dense)):
        refused = f", {np.isnan(ratio[which]).sum()} not runnable by our account"
        yield ratio_line(f"offline throughput, {kind}", ratio[which], LIMITS[kind], refused)
    points = [run.point for run in found.rows]
    alike = [replace(point, dtype="", kv_dtype="") for point in points]
    theirs = np.array([run.tokens_per_s for run in found.rows])
    pairs = kind_pairs(alike, [p.dtype for p in points], np.array(found.answers, float), theirs)
    yield from pair_lines("offline throughput in two precisions", *pairs)


def _online(reference: Path) -> Iterator[Check]:
    shelf = functools.cache(asked_without)
    found = answered(
        "online", online(reference), lambda run: simulate(run.point, shelf(run.point.model))
    )
    yield from found.lines
    keeps_up = np.array([run.keeps_up for run in found.rows], bool)
    for name, ours, theirs in (
        ("TTFT", "ttft_mean_s", "ttft_s"),
        ("TPOT", "tpot_mean_s", "tpot_s"),
        ("throughput", "tokens_per_s", "tokens_per_s"),
    ):
        predicted = np.array([getattr(metrics, ours) for metrics in found.answers])
        ratio = predicted / np.array([getattr(run, theirs) for run in found.rows])
        for load, which in (("below saturation", keeps_up), ("saturated", ~keeps_up)):
            yield ratio_line(f"online {name}, {load}", ratio[which], ONLINE_LIMITS[name], RELEASE)
