"""Errors on Qwen3-32B as NVIDIA measured it on H100: a model, and rows, that no fit has seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.decisions import TPOT, TTFT
from lab.claims.lines import at_most
from lab.claims.predicted_deployments import METRICS, predict
from lab.tables.deployments import QWEN3_32B, QWEN3_32B_PEER, silicon
from simulators.composition.replica import FRAMEWORKS
from simulators.core.contract import Check

NEEDS = (QWEN3_32B,)
LIMITS = {TPOT: 8.0, TTFT: 25.0}
"""Of mean errors in percent, under each framework."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the mean error of both metrics under each framework, and the median of TTFT."""
    rows = silicon(reference, QWEN3_32B, QWEN3_32B_PEER)
    found = predict([row for row in rows if not row.excluded])
    names = np.array([row.framework for row in found.rows])
    yield from found.lines
    for framework in FRAMEWORKS:
        which = names == framework
        for metric in METRICS:
            ours, theirs, note = found.errors(metric, which)
            title, count = f"deployments, Qwen3-32B, {framework}, {metric}", int(which.sum())
            for name in ("mean", "median") if metric == TTFT else ("mean",):
                value, peer = getattr(ours, name), getattr(theirs, name)
                yield at_most(f"{title} {name}", value, LIMITS[metric], count, note, peer=peer)
