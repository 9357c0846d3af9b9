"""Tasks: measured rows, their keys in a table of predictions, and the choices among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.claims.deployments import (
    TPOT,
    TTFT,
    Decisions,
    across_gpus,
    power_limit_w,
    usd_per_hour,
    within_gpu,
)
from lab.tables.deployments import QWEN3_32B, QWEN3_32B_PEER, SILICON, silicon
from lab.tables.fp32 import MODEL_TIMES
from lab.tables.rows import Bools, read_records
from lab.tables.training import FLAGGED, MEASURED, SOURCES, contradicts, flagged
from simulators.core.jit import Floats

Key = tuple[str, ...]
"""The values of a row in the columns that identify it."""

Figures = Mapping[str, Floats]
"""Columns with an entry for each row; NaN where there is none."""


@dataclass(frozen=True)
class ScoredTask:
    """Measured rows of one kind."""

    key: tuple[str, ...]  # columns that identify a row
    names: Sequence[Key]  # the key of each row
    measured: Figures  # by the column in which a figure is predicted
    kinds: Mapping[str, Bools]  # groups of rows that are scored; `all` are those without a fault
    choices: Mapping[str, Sequence[Decisions]] = field(default_factory=dict)
    decided_by: Callable[[Figures], Mapping[str, Floats]] = lambda figures: figures


def key_of(values: Sequence[object]) -> Key:
    """Return the key of a row; whole numbers are written as such, however they are stored.

    >>> key_of(["H100", 4, 4.0, True])
    ('H100', '4', '4', 'true')
    """
    return tuple(_word(value) for value in values)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def deployments(reference: Path) -> ScoredTask:
    """Return deployments: mean TTFT and TPOT, and choices on one GPU and across GPUs."""
    rows = silicon(reference)
    own = silicon(reference, QWEN3_32B, QWEN3_32B_PEER) if (reference / QWEN3_32B).is_file() else []
    every = [*rows, *own]
    kept = np.array([not row.excluded for row in every], bool)
    first = np.arange(len(every)) < len(rows)
    kinds = {"all": kept & first, "with excluded rows": first}
    for gpu in sorted({row.gpu for row in rows}):
        kinds[gpu] = kept & first & np.array([row.gpu == gpu for row in every])
    if own:
        kinds["Qwen3-32B on H100"] = kept & ~first
    return ScoredTask(
        key=("id",),
        names=[(row.name,) for row in every],
        measured={
            "ttft_ms": np.array([1e3 * row.ttft_s for row in every]),
            "tpot_ms": np.array([1e3 * row.tpot_s for row in every]),
        },
        kinds=kinds,
        choices={
            "on one GPU, throughput": within_gpu(every),
            "across GPUs, tokens per dollar": across_gpus(every, usd_per_hour(every)),
            "across GPUs, tokens per joule": across_gpus(every, power_limit_w(every)),
        },
        decided_by=lambda f: {TTFT: f["ttft_ms"] * 1e-3, TPOT: f["tpot_ms"] * 1e-3},
    )


def fp32_models(reference: Path) -> ScoredTask:
    """Return whole transformers in fp32 under PyTorch, by how many GPUs ran them."""
    key = ("gpu", "model", "mode", "batch", "seq_len", "fused", "parallelism")
    rows = read_records(reference / MODEL_TIMES)
    alone = np.array([row.n_gpus == 1 for row in rows], bool)
    return ScoredTask(
        key=key,
        names=[key_of([row[name] for name in key]) for row in rows],
        measured={"total_ms": np.array([row.measured_ms for row in rows], np.float64)},
        kinds={"all": np.ones(len(rows), bool), "one GPU": alone, "four GPUs": ~alone},
    )


def training_steps(reference: Path) -> ScoredTask:
    """Return training steps whose time is known, by source."""
    rows = [row for row in read_records(reference / MEASURED) if row.step_time_s]
    reasons = flagged(reference)
    kept = np.array([not contradicts(reasons.get(row.row_id, "")) for row in rows], bool)
    sources = [next((n for w, n in SOURCES.items() if w in row.source), "") for row in rows]
    kinds = {"all": kept, "with flagged rows": np.ones(len(rows), bool)}
    for source in dict.fromkeys(filter(None, sources)):
        kinds[source] = kept & np.array([name == source for name in sources])
    return ScoredTask(
        key=("row_id",),
        names=[(row.row_id,) for row in rows],
        measured={"step_time_s": np.array([row.step_time_s for row in rows], np.float64)},
        kinds=kinds,
    )


TASKS: Mapping[str, tuple[Callable[[Path], ScoredTask], Sequence[str]]] = {
    "deployments": (deployments, (SILICON,)),
    "fp32_models": (fp32_models, (MODEL_TIMES,)),
    "training_steps": (training_steps, (MEASURED, FLAGGED)),
}
"""Tasks by name, with the tables that each needs."""
