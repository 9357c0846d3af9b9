"""The clock at which a token takes least energy within its deadlines lies below the highest.

So it is of ThrottLL'eM's A100s, whose clocks follow the load (Kakolyris et al., HPCA 2025); its
rows are not public, and no table here holds boards at several clocks. What is judged is the
direction: a prompt slows down as the clock, a decode hardly, and joules fall until a deadline is
missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lab.claims.lines import absent, at_most
from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.serving.answer.metrics import ServingMetrics
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate

SERVED = (
    ServingPoint(model="llama2_13b", gpu="a100_sxm", qps=2.0),
    ServingPoint(model="llama3_1_70b", gpu="a100_sxm", tp=4, qps=1.0),
)
"""Models of the size, on the board, that the paper has."""

SHARES = tuple(round(0.4 + 0.1 * step, 1) for step in range(7))
TTFT_P99_S, TPOT_S = 2.0, 0.2
"""Deadlines: of the time between tokens the paper's, of the first one a choice."""

BELOW = 0.9
"""Of the highest clock, the least of these shares below it."""


def checks(_reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the best clock of each deployment as a share of the highest, and what it saves."""
    for served in SERVED:
        highest_hz = load_gpu(served.gpu).clock_hz
        point = replace(
            served,
            scheduler="vllm_v1",
            runtime="vllm",
            chunk_size=2048,
            workload="chat",
            requests=300,
        )
        found = {
            share: simulate(replace(point, gpu_clock_hz=share * highest_hz)) for share in SHARES
        }
        in_time = {s: _joules(m) for s, m in found.items() if _is_in_time(m)}
        name = f"least-energy clock within deadlines, {served.model}"
        if not in_time:
            yield absent(name, "no clock meets them")
            continue
        best = min(in_time, key=lambda share: in_time[share])
        saved = 1.0 - in_time[best] / _joules(found[1.0])
        note = f"of the highest; {saved:.0%} less energy a token, direction alone"
        yield at_most(name, best, BELOW, len(SHARES), note, unit="")


def _joules(metrics: ServingMetrics) -> float:
    assert metrics.energy_j_per_token is not None
    return metrics.energy_j_per_token


def _is_in_time(metrics: ServingMetrics) -> bool:
    ttft_s, tpot_s = metrics.ttft_p99_s, metrics.tpot_mean_s
    return ttft_s is not None and ttft_s <= TTFT_P99_S and (tpot_s or 0.0) <= TPOT_S
