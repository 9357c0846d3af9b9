"""Iterations of plans over several nodes, from layers timed alone on one GPU of each kind.

Nothing of the kernel model is asked. What summing gradients takes is a latency and bytes over a
bandwidth, one of each per cluster, and what a rank holds besides weights, gradients, states and
activations is one number per cluster: they are fitted to every second plan and test the others,
both ways. A micro-batch of one is told apart, whose profile is slower than that of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most, error_line
from lab.stages.profiled import timed_step_s
from lab.tables.training.layer_profiles import ITERATIONS, LAYERS, PROFILES, Iteration, iterations
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check

NEEDS = (ITERATIONS, PROFILES, LAYERS)
GH200 = "clariden"
GB = 1e9


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the errors of iterations and of memory, each plan outside the fit it is judged by."""
    found: dict[str, list[tuple[Iteration, float, float]]] = {}
    for plan in iterations(reference):
        found.setdefault(plan.cluster, [])
    for cluster in found:
        plans = [plan for plan in iterations(reference) if plan.cluster == cluster]
        for half in range(2):
            fitted, tested = plans[half::2], plans[1 - half :: 2]
            latency_s, s_per_byte = sync_of(fitted)
            base = float(np.median([plan.peak_bytes - plan.held_bytes for plan in fitted]))
            for plan in tested:
                stages = plan.with_sync(latency_s + s_per_byte * ring_bytes(plan))
                step_s = timed_step_s(stages, plan.micro_batches)
                time_error = 100.0 * (step_s / plan.seconds - 1.0)
                memory_error = 100.0 * ((plan.held_bytes + base) / plan.peak_bytes - 1.0)
                found[cluster].append((plan, time_error, memory_error))
    rows = found.get(GH200, [])
    if not rows:
        yield absent("layer profiles", unit="%")
        return
    large = [np.array([error for plan, error, _ in rows if plan.micro_batch >= 2])]
    small = [np.array([error for plan, error, _ in rows if plan.micro_batch < 2])]
    yield error_line("layer profiles, GH200, micro-batches of 2 and more", large, 8.0)
    yield error_line("layer profiles, GH200, micro-batches of 1", small)
    mixed = [np.array([error for name in found if name != GH200 for _, error, _ in found[name]])]
    yield error_line("layer profiles, RTX 3090, 2080 and Titan together", mixed, 25.0)
    memory = [np.array([error for _, _, error in rows])]
    yield error_line("layer profiles, GH200, peak memory", memory, 10.0)
    has = load_gpu("gh200").hbm_bytes
    full = sum(plan.peak_bytes * (1.0 + error / 100.0) > has for plan, _, error in rows)
    name = "layer profiles, GH200, measured plans said not to fit"
    yield at_most(name, float(full), 0.0, len(rows), f"of {has / GB:.0f} GB", unit="plans")


def sync_of(plans: Sequence[Iteration]) -> tuple[float, float]:
    """Return the latency and the seconds of a byte that fit the measured sums of gradients best."""
    sizes = np.array([[1.0, ring_bytes(plan)] for plan in plans])
    seconds = np.array([plan.sync_s for plan in plans])
    (latency_s, s_per_byte), *_ = np.linalg.lstsq(sizes, seconds, rcond=None)
    return max(0.0, float(latency_s)), max(0.0, float(s_per_byte))


def ring_bytes(plan: Iteration) -> float:
    """Return what a rank sends when gradients are summed in a ring."""
    return 2.0 * (plan.dp - 1) / plan.dp * plan.gradient_bytes
