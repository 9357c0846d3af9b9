"""Deployments measured in public: times to the first and per later token, and choices among them.

Each model on its GPU is left out of the engine constants, or on all GPUs. Beside ours stand the
predictions of aiconfigurator 0.12.0, on the rows it answers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.decisions import (
    TPOT,
    TTFT,
    Decisions,
    across_gpus,
    power_limit_w,
    regrets,
    usd_per_hour,
    within_gpu,
)
from lab.claims.pairs import kind_pairs
from lab.claims.predictions import columns, predict, together
from lab.fits.intervals import deployment_bands
from lab.fits.left_out import run_cache_without, width_without
from lab.fits.steady_state import by_replica, deployed_replica
from lab.tables.deployments import QWEN3_32B, QWEN3_32B_PEER, PublicDeployment, silicon
from lab.tables.rows import Bools, Floats, evenly
from simulators.composition.replica import load_runtime
from simulators.serving.measured_deployments import point_of
from simulators.serving.prices.iteration_table import everyday_reach
from simulators.serving.simulator import simulate

METRICS = {TPOT: "tpot_s", TTFT: "ttft_s"}
LOADS = 6
"""Of one replica that are simulated with its model left out, at most."""

CHANCES = (0.5, 0.7, 0.9)
"""Predicted chances of meeting a deadline that are compared with the share that meets it."""

LEVELS = ("measured", "unmeasured", "of its architecture unmeasured")
"""What is known of the kernels of the GPU, in the order of the fits' levels."""


@functools.lru_cache(maxsize=1)
def _all(reference: Path) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return the deployments with a prediction, excluded rows too, and their predictions."""
    return _predicted(silicon(reference), lambda row: row.group)


def _predicted(
    rows: Sequence[PublicDeployment], left_out: Callable[[PublicDeployment], str]
) -> tuple[list[PublicDeployment], pl.DataFrame]:
    """Return deployments that are feasible, and a frame with a row for each metric of each."""
    cache_of = functools.cache(run_cache_without)

    def answer(row: PublicDeployment) -> dict[str, float | None]:
        metrics = simulate(point_of(row), cache_of(row.runtime, left_out(row)))
        return {TPOT: metrics.tpot_mean_s, TTFT: metrics.ttft_mean_s}

    numbers = {id(row): number for number, row in enumerate(rows)}
    answers = predict(rows, answer, lambda row: {"number": numbers[id(row)]})
    known = answers.filter(pl.col(TPOT).is_not_null())
    found = [rows[number] for number in known["number"]]
    frames = [
        columns(
            metric=metric,
            predicted=known[metric].to_numpy(),
            measured=np.array([getattr(row, name) for row in found], np.float64),
            peer=[getattr(row, f"peer_{name}") for row in found],
            has_peer=[row.peer_tpot_s is not None for row in found],
            gpu=[row.gpu for row in found],
            framework=[row.framework for row in found],
            is_dense=[row.is_dense for row in found],
            is_kept=[not row.excluded for row in found],
            label=[row.name for row in found],
        )
        for metric, name in METRICS.items()
    ]
    if "skipped" in answers.columns:
        frames.append(answers.filter(pl.col("skipped").is_not_null()).select("skipped"))
    return found, together(frames)


def times(reference: Path) -> pl.DataFrame:
    """Return the times of all deployments, each model on its GPU left out, with intervals."""
    rows, frame = _all(reference)
    ends = np.empty((len(METRICS), len(rows), 2))
    for indices in by_replica(rows).values():
        row = rows[indices[0]]
        reach = everyday_reach(deployed_replica(row, load_runtime(row.runtime)))
        for bands, metric in zip(ends, map(str.lower, METRICS), strict=True):
            width = width_without(row.gpu, row.framework, metric)
            bands[indices] = width.band(reach[metric])
    low, high = (pl.Series(ends[:, :, side].ravel()) for side in (0, 1))
    known = frame.filter(pl.col("predicted").is_not_null())
    known = known.with_columns(lo=low * pl.col("predicted"), hi=high * pl.col("predicted"))
    return together([known, frame.filter(pl.col("predicted").is_null())])


def model_left_out(reference: Path) -> pl.DataFrame:
    """Return the times of some loads of each replica, its model left out on all GPUs."""
    kept = [row for row in _all(reference)[0] if not row.excluded]
    some = [kept[rows[i]] for rows in by_replica(kept).values() for i in evenly(len(rows), LOADS)]
    return _predicted(some, lambda row: row.model)[1]


def qwen3_32b(reference: Path) -> pl.DataFrame:
    """Return the times of Qwen3-32B on H100 as NVIDIA measured it: no fit has seen the model."""
    rows = silicon(reference, QWEN3_32B, QWEN3_32B_PEER)
    return _predicted([row for row in rows if not row.excluded], lambda row: row.group)[1]


def precisions(reference: Path) -> pl.DataFrame:
    """Return ratios of TPOT of one deployment in two precisions, as throughputs."""
    rows, frame = _all(reference)
    kept = np.array([not row.excluded for row in rows])
    alike = [
        (row.model, row.gpu, row.framework, row.cut, row.clients, row.prompt, row.output)
        for row in rows
        if not row.excluded
    ]
    kinds = [row.family[3] for row in rows if not row.excluded]
    ours, theirs = (1.0 / _column(frame, TPOT, name)[kept] for name in ("predicted", "measured"))
    predicted, measured = kind_pairs(alike, kinds, ours, theirs)
    return columns(predicted=predicted, measured=measured)


def decisions(reference: Path) -> pl.DataFrame:
    """Return what choices by our predictions, and by the other tool's, give up in percent.

    On one GPU and load, the choice is among frameworks, precisions and cuts, by throughput per GPU.
    Across GPUs it is for one model, its lengths and a TPOT deadline, by tokens per dollar of list
    prices, or per joule of the GPUs' power limits: what they drew was not metered.
    """
    rows, frame = _all(reference)
    among = {
        "deployments regret": within_gpu(rows),
        "deployments regret across GPUs, per dollar,": across_gpus(rows, usd_per_hour(rows)),
        "deployments regret across GPUs, per joule,": across_gpus(rows, power_limit_w(rows)),
    }
    kept = np.array([not row.excluded for row in rows])
    answered = kept & ~np.isnan(_column(frame, TPOT, "peer"))
    frames = []
    for what, choices in among.items():
        ours = _regrets(frame, choices, "predicted", kept)
        both = _regrets(frame, choices, "predicted", answered)
        theirs = _regrets(frame, choices, "peer", answered)
        frames.append(columns(what=what, predicted=ours))
        frames.append(columns(what=f"{what} peer", predicted=both, peer=theirs))
    return together(frames)


def _regrets(
    frame: pl.DataFrame, choices: Sequence[Decisions], column: str, which: Bools
) -> Floats:
    measured, believed = (
        {metric: _column(frame, metric, name) for metric in METRICS}
        for name in ("measured", column)
    )
    return regrets(choices, measured, believed, which)


def _column(frame: pl.DataFrame, metric: str, name: str) -> Floats:
    """Return a column of the rows of one metric, NaN where it is empty."""
    return frame.filter(pl.col("metric") == metric)[name].cast(pl.Float64).to_numpy()


def by_level(reference: Path) -> pl.DataFrame:
    """Return times by what is known of the GPU's kernels, with intervals and deadlines.

    The constants of the engine come from deployments without the model on the GPU, the band from
    other GPUs. `met_50` says whether a deadline was met of which the predicted chance is 50 %.
    """
    words = dict(zip(deployment_bands.KNOWN, LEVELS, strict=True))
    rows = []
    for one in deployment_bands.predicted(reference):
        for metric in deployment_bands.METRICS:
            width = width_without(one.row.gpu, one.row.framework, metric)
            low, high = width.band(one.reach[metric])
            ratio = one.ratio[metric]  # measured over predicted
            met = {f"met_{100 * c:.0f}": ratio <= _limit_of(c, low, high) for c in CHANCES}
            rows.append(
                {
                    "metric": metric.upper(),
                    "level": words[one.known],
                    "gpu": one.row.gpu,
                    "predicted": 1.0,
                    "measured": ratio,
                    "lo": low,
                    "hi": high,
                    **met,
                }
            )
    return pl.DataFrame(rows)


def _limit_of(chance: float, low: float, high: float) -> float:
    """Return the limit that is met with a chance, as a share of the prediction.

    >>> [round(_limit_of(chance, 0.5, 2.0), 3) for chance in (0.05, 0.5, 0.95)]
    [0.5, 1.0, 2.0]
    """
    end, beyond = (high, 1.0 - chance) if chance >= 0.5 else (low, chance)
    return float(end ** -math.log10(2.0 * beyond))
