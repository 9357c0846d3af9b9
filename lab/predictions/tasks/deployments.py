"""Deployments under a number of clients: mean times to the first token and per later one.

The choices are those of `deployments_regret`: a design on one GPU, and one across GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lab.claims.decisions import TPOT, TTFT, across_gpus, board_w, usd_per_hour, within_gpu
from lab.predictions.task import Choices, Figures, Task
from lab.tables.deployments import QWEN3_32B, QWEN3_32B_PEER, SILICON, silicon
from simulators.core.jit import Floats

NEEDS = (SILICON,)
COLUMNS = {"ttft_ms": TTFT, "tpot_ms": TPOT}


def task(reference: Path) -> Task:
    """Return the rows; those of a model in a table of its own are a kind, not among `all`."""
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
    return Task(
        key=("id",),
        names=[(row.name,) for row in every],
        measured={
            "ttft_ms": np.array([1e3 * row.ttft_s for row in every]),
            "tpot_ms": np.array([1e3 * row.tpot_s for row in every]),
        },
        kinds=kinds,
        choices=[
            Choices("on one GPU, throughput", within_gpu(every)),
            Choices("across GPUs, tokens per dollar", across_gpus(every, usd_per_hour(every))),
            Choices("across GPUs, tokens per joule", across_gpus(every, board_w(every))),
        ],
        decided_by=_times,
    )


def _times(figures: Figures) -> Mapping[str, Floats]:
    """Return the seconds that choices read."""
    return {COLUMNS[name]: column * 1e-3 for name, column in figures.items()}
