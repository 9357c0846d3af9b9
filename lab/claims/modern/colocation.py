"""Models on a share of the SMs: how much longer passes take than on all of them.

The kernel model with fewer SMs, on which nothing was fitted here: every model and every row judges
it. What models beside each other cost was published for one pair alone (a vendor's page, whose load
and lengths are not said): its bounds are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most, compared
from lab.tables.catalog_names import model_of
from lab.tables.modern.colocation import BOARD, PROFILE, slowdowns
from lab.tables.rows import Floats, Record
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu, what_if
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.core.contract import Check
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import decode_step, prefill_step

NEEDS = (PROFILE,)
LIMIT = 12.0
ENGINE = "eager"
"""MuxServe runs a vLLM of 2023, which launched kernel by kernel."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the error of slowdowns by phase, of all models and of each."""
    rows = list(slowdowns(reference))
    ours = [predicted(one) for one in rows]
    for phase in ("prefill", "decode"):
        theirs = [getattr(one, phase) for one in rows]
        found = [mine[phase] for mine in ours]
        names = [
            f"{one.model} on {one.gpus}, {share:.0%} of the SMs, {batch:.0f} x {tokens:.0f}"
            for one in rows
            for share, batch, tokens in zip(one.share, one.batch, one.tokens, strict=True)
        ]
        title = f"co-location, slowdown on a share of the SMs, {phase}"
        timed = np.isfinite(np.concatenate(theirs))
        yield compared(
            title,
            np.concatenate(found)[timed],
            np.concatenate(theirs)[timed],
            [name for name, known in zip(names, timed, strict=True) if known],
            LIMIT,
        )
        for model in sorted({one.model for one in rows}):
            mine = [i for i, one in enumerate(rows) if one.model == model]
            off = np.concatenate([found[i] / theirs[i] - 1.0 for i in mine])
            off = off[np.isfinite(off)]
            yield at_most(
                f"{title}, {model}",
                100.0 * float(np.mean(np.abs(off))),
                LIMIT,
                off.size,
                f"bias {100.0 * np.mean(off):+.1f} %",
            )


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
    sheet = load_gpu(BOARD)
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
