"""Training set-ups of papers and scenarios: published speeds, and bands of published metrics.

Nothing was fitted to them. Whether a run fits the memory is not asked: parts of a layer are
recomputed there, and some are kept in FP8. What a report leaves out is as in Megatron-LM,
interleaved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from simulators.dataflow.mapping.files import read_yaml
from simulators.training.constants import load_constants
from simulators.training.metrics import JOB_FIELDS, job_of, plans_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR
from simulators.training.step import steps, work_of

TOKENS = 1e12


def published(_reference: Path, runs: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the predicted and published speed of each run.

    Args:
        runs: each with its point and one published figure: TFLOP/s of a GPU in bf16, seconds of a
            step, or GPU-hours for 1e12 tokens.
    """
    rows = []
    for run in runs:
        point = TrainingPoint(**run["point"])
        gpus = point.tp * point.pp * point.cp * point.dp
        result = steps(work_of(job_of(vars(point)), plans_of(batch_of([point]))), load_constants())
        step_s, flops = float(result.step_s[0]), float(result.flops[0])
        gpu_hours = TOKENS / (point.batch * point.sequence) * step_s * gpus / 3600.0
        teraflops = flops / step_s / gpus / 1e12
        if "teraflops" in run:  # as times of the same work
            predicted, measured = 1.0 / teraflops, 1.0 / run["teraflops"]
        elif "gpu_hours" in run:
            predicted, measured = gpu_hours, run["gpu_hours"]
        else:
            predicted, measured = step_s, run["step_s"]
        rows.append({"run": run["name"], "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows).with_columns(label="run")


def anchors(
    reference: Path,
    points: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, Mapping[str, Any]],
) -> pl.DataFrame:
    """Return published metrics with their bands `lo` and `hi`, and whether they are inside.

    The set-ups themselves were not measured: bands are of neighbouring measurements or published
    formulas, and were written down before anything was predicted.

    Args:
        reference: the folder of reference tables.
        points: set-ups by name.
        metrics: by what each is called: the band's scenario and name, the column of the result, the
            set-up, and the one that it is divided by, if any.
    """
    bands = {
        (scenario["id"], target["name"]): target["band"]
        for scenario in read_yaml(reference / "scenarios.yaml")["scenarios"]
        for target in scenario["target_metrics"]
    }
    asked = {name: TrainingPoint(**fields) for name, fields in points.items()}
    answers = SIMULATOR.evaluate(batch_of(list(asked.values()))).to_pylist()
    results = dict(zip(asked, answers, strict=True))
    for name, point in asked.items():
        job = job_of({field: getattr(point, field) for field in JOB_FIELDS})
        results[name]["trained_weights"] = job.trained_share * job.model.parameters
    rows = []
    for what, metric in metrics.items():
        value = results[metric["of"]][metric["column"]]
        value /= results[metric["over"]][metric["column"]] if "over" in metric else 1.0
        low, high = map(float, bands[metric["scenario"], metric["name"]])
        value /= metric.get("unit", 1.0)
        inside = low <= value <= high
        label = f"{value:.3g} asked for {low:g} to {high:g}"
        rows.append(
            {
                "what": what,
                "predicted": value,
                "lo": low,
                "hi": high,
                "inside": inside,
                "label": label,
            }
        )
    return pl.DataFrame(rows)
