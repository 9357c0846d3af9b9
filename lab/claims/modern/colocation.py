"""Models on a share of the SMs: how much longer passes take than on all of them.

The kernel model with fewer SMs; nothing was fitted to these rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.tables.catalog_names import model_of
from lab.tables.modern.colocation import GPU, slowdowns
from lab.tables.rows import Floats, Record
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu, what_if
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step, prefill_step

ENGINE = "eager"
"""MuxServe runs a vLLM of 2023, which launched kernel by kernel."""


def passes(reference: Path) -> pl.DataFrame:
    """Return predicted and measured slowdowns of prefill and decode passes."""
    frames = []
    for row in slowdowns(reference):
        for phase, ours in predicted(row).items():
            theirs = getattr(row, phase)
            timed = np.isfinite(theirs)
            label = f"{row.model} on {row.gpus}"
            frames.append(
                columns(predicted=ours[timed], measured=theirs[timed], phase=phase, label=label)
            )
    return together(frames)


def predicted(rows: Record) -> dict[str, Floats]:
    """Return how much longer each pass takes on its share of the SMs than on all of them."""
    whole = _passes_s(rows, 1.0)
    found = {phase: np.empty(rows.share.size) for phase in whole}
    for share in np.unique(rows.share):
        mine = rows.share == share
        for phase, seconds in _passes_s(rows, float(share)).items():
            found[phase][mine] = seconds[mine] / whole[phase][mine]
    return found


def _passes_s(rows: Record, share: float) -> dict[str, Floats]:
    """Return the seconds of all rows' passes on one share of the SMs."""
    sheet = load_gpu(GPU)
    cut = Parallelism(tp=rows.gpus)
    replica = Replica(
        model_of(rows.model),
        what_if(sheet, sm_scale=share),
        cluster_for("auto", sheet),
        cut,
        runtime=runtime_across(load_runtime(ENGINE), cut.width),
    )
    steps = {
        "prefill": prefill_step(rows.batch, rows.tokens),
        "decode": decode_step(rows.batch, rows.tokens),
    }
    return {phase: np.asarray(iteration(replica, step).latency_s) for phase, step in steps.items()}
