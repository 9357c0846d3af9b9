"""Fit how far intervals of passes reach on the deployments that bands of frameworks were seen on.

What a deployment's kernels are less sure of than these widens its band
(`simulators/serving/answer/error_bands.py`). The median over replicas stands for a framework. And
how much further 99th percentiles of published runs lie from ours than their means do: that widens
the band of a percentile, whatever the framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import answered
from lab.fits.driver import Calibration, calibration, hashes
from lab.fits.left_out import shelf_without
from lab.fits.steady_state import by_replica, deployed_replica
from lab.tables.deployments import SILICON, silicon
from lab.tables.result_blocks import BLOCKS, Block, blocks
from simulators.composition.replica import load_runtime
from simulators.core.jit import Floats
from simulators.serving.answer.error_bands import CALIBRATION
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.measured_deployments import FRAMEWORKS
from simulators.serving.prices.iteration_table import everyday_reach
from simulators.serving.run import Shelf, run_of

FOLDER = CALIBRATION.parent
SPLIT = "usual: none, only intervals are read; tail: no run is part of any fit of times"
TAILS = (0.05, 0.95)
"""Of the ratio of a 99th percentile to its mean, measured over predicted."""


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the usual reach of every framework, of both latencies."""
    rows = [row for row in silicon(reference) if not row.excluded]
    first = [rows[indices[0]] for indices in by_replica(rows).values()]
    lines, off = [], []
    for framework in FRAMEWORKS:
        runtime = load_runtime(framework)
        some = [
            everyday_reach(deployed_replica(row, runtime))
            for row in first
            if row.framework == framework
        ]
        lines.append(f"[usual.{framework}]")
        for metric in some[0]:
            ends = np.log([reach[metric] for reach in some])
            low, high = np.exp(usual := np.median(ends, axis=0))
            lines.append(f"{metric} = [{low:.4g}, {high:.4g}]")
            off.append(np.abs(ends - usual).ravel())
    lines.append("[tail]")
    for metric, ratio in tails(reference).items():
        low, high = np.quantile(ratio, TAILS)
        lines.append(f"{metric} = [{min(low, 1.0):.4g}, {max(high, 1.0):.4g}]")
    yield calibration(
        CALIBRATION.stem, hashes(reference, [SILICON, BLOCKS]), rows=len(first), split=SPLIT,
        held_out=np.expm1(np.concatenate(off)), lines=lines,
    )  # fmt: skip


def tails(reference: Path) -> dict[str, Floats]:
    """Return the 99th percentile over the mean, measured over predicted, of published runs."""
    shelf, ratios = functools.cache(shelf_without), []
    told = answered("runs", blocks(reference)[0], lambda block: predicted(block, shelf))
    for block, ours in zip(told.rows, told.answers, strict=True):
        percentile = block.ttft_p99_s, ours.ttft_mean_s, block.tpot_p99_s, ours.tpot_mean_s
        mean = block.ttft_s, ours.ttft_p99_s, block.tpot_s, ours.tpot_p99_s
        over = np.array(percentile, np.float64) / np.array(mean, np.float64)
        ratios.append((over[0] * over[1], over[2] * over[3]))
    columns = np.array(ratios, np.float64).T
    return {n: c[~np.isnan(c)] for n, c in zip(("ttft", "tpot"), columns, strict=True)}


def predicted(block: Block, shelf: Callable[[str, str], Shelf]) -> ServingMetrics:
    """Return ours of a published run, its group left out where anything was fitted to it."""
    return run_of(block.point, shelf=shelf(block.point.runtime, block.group)).metrics()
