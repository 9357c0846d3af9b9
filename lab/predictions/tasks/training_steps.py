"""Training steps of papers, recipes and frameworks' tables: seconds of a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.predictions.task import Task
from lab.tables.rows import read_records
from lab.tables.training.steps import FLAGGED, MEASURED, SOURCES, contradicts, flagged

NEEDS = (MEASURED, FLAGGED)


def task(reference: Path) -> Task:
    """Return the rows whose step is known, by source."""
    rows = [row for row in read_records(reference / MEASURED) if row["step_time_s"]]
    reasons = flagged(reference)
    kept = np.array([not contradicts(reasons.get(row["row_id"], "")) for row in rows], bool)
    sources = [next((n for w, n in SOURCES.items() if w in row["source"]), "") for row in rows]
    kinds = {"all": kept, "with flagged rows": np.ones(len(rows), bool)}
    for source in dict.fromkeys(filter(None, sources)):
        kinds[source] = kept & np.array([name == source for name in sources])
    return Task(
        key=("row_id",),
        names=[(row["row_id"],) for row in rows],
        measured={"step_time_s": np.array([row["step_time_s"] for row in rows], np.float64)},
        kinds=kinds,
    )
