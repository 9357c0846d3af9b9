"""Whole transformers in fp32 under PyTorch, forward or forward and backward, on ten boards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.predictions.task import Task, key_of
from lab.tables.graphs import TABLE
from lab.tables.rows import read_records

NEEDS = (TABLE,)
KEY = ("gpu", "model", "mode", "batch", "seq_len", "fused", "parallelism")


def task(reference: Path) -> Task:
    """Return the rows, by how many GPUs ran them."""
    rows = read_records(reference / TABLE)
    alone = np.array([row["n_gpus"] == 1 for row in rows], bool)
    return Task(
        key=KEY,
        names=[key_of([row[name] for name in KEY]) for row in rows],
        measured={"total_ms": np.array([row["measured_ms"] for row in rows], np.float64)},
        kinds={"all": np.ones(len(rows), bool), "one GPU": alone, "four GPUs": ~alone},
    )
