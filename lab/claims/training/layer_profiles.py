"""Iterations of plans over several nodes, from layers timed alone on one GPU of each kind.

The kernel model is not used. The time to sum gradients is a latency and bytes over a bandwidth, one
of each per cluster; memory besides weights, gradients, optimizer states and activations is one
number per cluster. Both are fitted to every second plan and test the others, both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.stages.profiled import timed_step_s
from lab.tables.training.layer_profiles import ProfiledPlan, iterations


def plans(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured seconds and peak bytes of each plan."""
    rows = []
    known = list(iterations(reference))
    for cluster in dict.fromkeys(plan.cluster for plan in known):
        mine = [plan for plan in known if plan.cluster == cluster]
        for half in range(2):
            fitted, tested = mine[half::2], mine[1 - half :: 2]
            latency_s, s_per_byte = _sync_of(fitted)
            base = float(np.median([plan.peak_bytes - plan.held_bytes for plan in fitted]))
            for plan in tested:
                stages = plan.with_sync(latency_s + s_per_byte * _ring_bytes(plan))
                cells = {"cluster": cluster, "micro_batch": plan.micro_batch}
                step_s = timed_step_s(stages, plan.micro_batches)
                rows += [
                    {**cells, "metric": "time", "predicted": step_s, "measured": plan.seconds},
                    {
                        **cells,
                        "metric": "memory",
                        "predicted": plan.held_bytes + base,
                        "measured": plan.peak_bytes,
                    },
                ]
    return pl.DataFrame(rows)


def _sync_of(plans: Sequence[ProfiledPlan]) -> tuple[float, float]:
    """Return the latency and the seconds per byte that fit the measured sums of gradients best."""
    sizes = np.array([[1.0, _ring_bytes(plan)] for plan in plans])
    seconds = np.array([plan.sync_s for plan in plans])
    (latency_s, s_per_byte), *_ = np.linalg.lstsq(sizes, seconds, rcond=None)
    return max(0.0, float(latency_s)), max(0.0, float(s_per_byte))


def _ring_bytes(plan: ProfiledPlan) -> float:
    """Return the bytes a rank sends when gradients are summed in a ring."""
    return 2.0 * (plan.dp - 1) / plan.dp * plan.gradient_bytes
