"""Training set-ups of scenarios against bands of published metrics; nothing was fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from simulators.dataflow.mapping.files import read_yaml
from simulators.training.metrics import JOB_FIELDS, job_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR


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
