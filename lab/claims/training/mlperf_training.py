"""Steps of MLPerf Training's submissions, each under constants that never saw its submitter.

The time to launch a kernel without a CUDA graph was fitted to LoRA runs of half of the submitters;
the other half tests it. Nothing else was fitted to them.

Quoted from "MLPerf Training v4.0, v4.1, v5.0, results repositories of MLCommons"; derived figures
are ours and no official results.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from lab.claims.predictions import predict
from lab.fits.training.host_launches import FIRST, SECOND, in_first_half
from lab.tables.training.mlperf_training import TrainingSubmission, submissions
from simulators.core.calibration import read_calibration
from simulators.training.job import CALIBRATION, Constants, check_job, load_constants
from simulators.training.step import steps, work_of


def step_times(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured seconds of a step of each system."""
    rows = list(submissions(reference))
    first = in_first_half(rows)
    others = {half: _of_submitters(half) for half in (FIRST, SECOND)}

    def answer(row: TrainingSubmission) -> dict[str, Any]:
        check_job(row.job)
        constants = others[SECOND if row.submitter in first else FIRST]
        predicted_s = float(steps(work_of(row.job, row.plans), constants).step_s[0])
        sequences = float((row.plans.dp * row.plans.micro_batch * row.plans.micro_batches)[0])
        return {
            "predicted": predicted_s,
            "measured": row.seconds,
            "submission": id(row),
            "sequences_per_gpu": sequences / row.gpus,
            "rounds": list(row.rounds),
            "gpus": row.gpus,
            "submitter": row.submitter,
            "benchmark": row.benchmark,
            "gpu": row.job.gpu.name,
            "label": f"{row.submitter}, {row.gpus} {row.job.gpu.name}",
        }

    return predict(rows, answer)


def _of_submitters(half: str) -> Constants:
    """Return the constants in use, with launches as fitted to a half of the submitters."""
    fitted = read_calibration(CALIBRATION)[half]
    return replace(load_constants(), launch_s=fitted["launch_s"])


def scaling(reference: Path) -> pl.DataFrame:
    """Return the efficiency of each submitter's largest system over its smallest, in percent.

    Systems of one round are compared: between rounds the software changes, by up to 18 % of a step.
    A pair that was carried over to a later round counts once.
    """
    systems = step_times(reference).explode("rounds").sort("gpus", maintain_order=True)
    rate = {name: pl.col("sequences_per_gpu") / pl.col(name) for name in ("predicted", "measured")}
    ratios = {name: 100.0 * one.last() / one.first() for name, one in rate.items()}
    pairs = systems.group_by("submitter", "benchmark", "gpu", "rounds", maintain_order=True).agg(
        **ratios,
        small=pl.col("submission").first(),
        large=pl.col("submission").last(),
        label=pl.col("label").last(),
        grows=pl.col("gpus").last() > pl.col("gpus").first(),
    )
    return pairs.filter("grows").unique(["small", "large"], maintain_order=True)
