"""Whole runs whose set-up and GPU-hours were published: DeepSeek-V3 on 2,048 H800s.

"Training DeepSeek-V3 on each trillion tokens requires only 180K H800 GPU hours": 16 pipeline ranks
under DualPipe, 64 expert ranks over 8 nodes, ZeRO-1, FP8, batches of 15,360 sequences of 4,096
tokens (DeepSeek-V3 technical report, 2024). Nothing was fitted to it, or to any H800. Whether it
fits the memory is not asked: parts of a layer run again there, and some are kept in FP8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lab.claims.lines import at_most
from simulators.core.contract import Check
from simulators.training.constants import load_constants
from simulators.training.metrics import job_of, plans_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.step import steps, work_of

NEEDS: tuple[str, ...] = ()
HOURS_A_TRILLION = 180_000.0
RUN = TrainingPoint(
    model="deepseek_v3", gpu="h800", pp=16, dp=128, ep=64, batch=15_360, sequence=4096,
    schedule="dualpipe", recompute="none", zero=1, dtype="fp8", gradient_dtype="bf16",
)  # fmt: skip


def checks(_reference: Path, _rows: str) -> Iterator[Check]:
    """Yield how far the run's GPU-hours are off, and what 1F1B would have taken."""
    ours, plain = hours_a_trillion(RUN), hours_a_trillion(replace(RUN, schedule="1f1b"))
    off = 100.0 * abs(ours / HOURS_A_TRILLION - 1.0)
    note = (f"{ours / 1e3:.0f}K GPU-hours for 1e12 tokens, {HOURS_A_TRILLION / 1e3:.0f}K measured; "
            f"{plain / 1e3:.0f}K by 1F1B")  # fmt: skip
    yield at_most("published run, DeepSeek-V3 on 2,048 H800, dualpipe", off, None, 1, note)


def hours_a_trillion(point: TrainingPoint) -> float:
    """Return the GPU-hours in which a design trains 1e12 tokens, none lost."""
    job, plans = job_of(vars(point)), plans_of(batch_of([point]))
    step_s = float(steps(work_of(job, plans), load_constants()).step_s[0])
    gpus = point.tp * point.pp * point.cp * point.dp
    return 1e12 / (point.batch * point.sequence) * step_s * gpus / 3600.0
